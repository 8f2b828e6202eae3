"""Two GPU machines that are none: `cuda-host` and `rocm-host`, real but for their GPUs, reached over real wires.

Each has an address, a name, a machine-id, an sshd, a Docker daemon, a /dev, homes and processes of its own. The test
user is `ekvi-test`, who may use Docker. This machine is their gateway: their links are its interfaces ekvi1, ekvi2.
`many` makes a third machine with many addresses, an sshd on each.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.dockerd import Dockerd
from tests.hosts.images import Image
from tests.hosts.namespace import ROOT, Namespace, own_folder, remove, remove_cgroups, sh, wait_for

USER = "ekvi-test"
HOME = Path("/home") / USER
LOCK = ROOT / "machines.lock"  # the addresses and interfaces are this machine's: one session at a time
_NET = "10.77.0.0/16"
_CHAIN = "EKVI-TEST"
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_TOOLS = Path(__file__).with_name("tools")
_SSHD = """
ListenAddress {address}
Port 22
PidFile none
HostKey {ssh}/host_key
AuthorizedKeysFile {ssh}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
X11Forwarding no
PrintMotd no
UseDNS no
MaxStartups 200:30:400
MaxSessions 100
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""
_CLIENT = """
Host {name}
  HostName {address}
  User {user}
  IdentityFile {keys}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """The test user's key pair, one for all machines, and the host keys that clients know."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Keys:
        """A new pair in a new folder."""
        folder.mkdir(mode=0o755)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", USER, "-f", folder / "user_key")
        (folder / "known_hosts").touch()
        (folder / "config").touch()
        return cls(folder)

    def know(self, name: str, address: str, host_key: Path) -> None:
        """Let clients reach `name` at `address` and know its key."""
        kind, key = host_key.with_suffix(".pub").read_text().split()[:2]
        with (self.folder / "known_hosts").open("a") as file:
            file.write(f"{address} {kind} {key}\n")
        with (self.folder / "config").open("a") as file:
            file.write(_CLIENT.format(name=name, address=address, user=USER, keys=self.folder))


class Machine:
    """A machine at the other end of `link`, this machine's interface. Its methods may be called in any order."""

    def __init__(self, folder: Path, name: str, index: int, kind: str, keys: Keys) -> None:
        self.name = name
        self.kind = kind
        self.address = f"10.77.{index}.2"
        self.link = f"ekvi{index}"
        self._gateway = f"10.77.{index}.1"
        self._keys = keys
        self._sshd: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        self._put_tools(folder / "tools")
        self.namespace = Namespace(folder, kind, name, self.address)
        self.cgroups = f"ekvi-test-{folder.parent.name}"
        self.dockerd = _MachineDockerd(self.namespace, Path("/run"), cgroups=self.cgroups)
        self._ssh = folder / "ssh"
        self._connect()

    def _put_tools(self, tools: Path) -> None:
        """Stand-ins for the vendor's programs: they print what `gpus.json` beside them says."""
        tools.mkdir()
        (tools / "gpus.json").write_text(json.dumps({"tenants": []}))
        for tool in {"nvidia": ("nvidia-smi",), "amd": ("rocm-smi", "amd-smi")}.get(self.kind, ()):
            shutil.copy(_TOOLS / tool, tools / tool)

    def _connect(self) -> None:
        pid = str(self.namespace.pid)
        sh("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        sh("ip", "addr", "add", f"{self._gateway}/24", "dev", self.link)
        sh("ip", "link", "set", self.link, "up")
        self._ip("link", "set", "lo", "up")
        self._ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self._ip("link", "set", "eth0", "up")
        self._ip("route", "add", "default", "via", self._gateway)

    def _ip(self, *words: str) -> None:
        sh(*self.namespace.enter(["ip", *words]))

    @property
    def ssh_config(self) -> Path:
        """A configuration for ssh and for a profile's `ssh: {config: ...}`."""
        return self._keys.folder / "config"

    @property
    def home(self) -> Path:
        """The test user's home as this machine sees it."""
        return self.namespace.folder / HOME.relative_to("/")

    def path(self, there: str | Path) -> Path:
        """Where a path below the machine's homes, or its /tmp, stands on this machine."""
        there = Path(there)
        assert there.parts[1] in ("home", "tmp"), f"{there} of {self.name} cannot be seen from here"
        return self.namespace.folder / there.relative_to("/")

    def exec(
        self, *argv: str, user: str = "root", check: bool = True, stdin: bytes | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there, not over the network; AssertionError with its words where it fails and `check`."""
        words = list(argv)
        if user != "root":
            own = [f"HOME=/home/{user}", f"USER={user}", f"LOGNAME={user}"]
            words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", "-C", f"/home/{user}"]
            words += [*own, *argv]
        done = self.namespace.run(*words, stdin=stdin, timeout=timeout)
        assert not check or done.returncode == 0, f"{self.name}: {shlex.join(argv)}: {done.stderr.decode()}"
        return done

    # --- the network
    def link_down(self) -> None:
        """Pull the cable out: who connects is told at once that there is no way."""
        sh("ip", "link", "set", self.link, "down")

    def link_up(self) -> None:
        """Put it back in."""
        sh("ip", "link", "set", self.link, "up")

    def drop_packets(self) -> None:
        """Lose every packet in both directions, silently."""
        for way in ("-i", "-o"):
            _iptables("-I", _CHAIN, way, self.link, "-j", "DROP")

    def accept_packets(self) -> None:
        """Lose none any more."""
        for way in ("-i", "-o"):
            with suppress(AssertionError):  # there was no such rule
                while True:
                    _iptables("-D", _CHAIN, way, self.link, "-j", "DROP")

    # --- its services
    def start_sshd(self, addresses: Sequence[str] = ()) -> None:
        """Start sshd and wait until it listens."""
        if not self._ssh.exists():
            self._make_host_key()
        for address in addresses or [self.address]:
            config = self._ssh / f"sshd_config.{address}"
            config.write_text(_SSHD.format(address=address, ssh=self._ssh))
            argv = ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
            self._sshd.append(self.namespace.spawn(argv, self.namespace.folder / "sshd.log"))
        for address in addresses or [self.address]:
            wait_for(lambda a=address: self._listens(a), 10, f"no sshd at {address}")  # type: ignore[misc]

    def _make_host_key(self) -> None:
        self._ssh.mkdir(mode=0o755)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", self._ssh / "host_key")
        public = (self._keys.folder / "user_key.pub").read_text()
        (self._ssh / "authorized_keys").write_text(public)
        self._keys.know(self.name, self.address, self._ssh / "host_key")

    @property
    def host_key(self) -> Path:
        """The private host key; changing it is a changed host key after the next `start_sshd`."""
        return self._ssh / "host_key"

    def _listens(self, address: str) -> bool:
        done = self.namespace.run("ss", "-Hltn", "src", f"{address}:22")
        return bool(done.stdout.strip())

    def kill_sshd(self) -> None:
        """Kill sshd and every session; what runs detached lives on."""
        end = time.monotonic() + 10
        while self.namespace.kill("sshd"):  # a session may have been forked while we looked
            assert time.monotonic() < end, f"sshd of {self.name} cannot be killed"
            time.sleep(0.01)
        for process in self._sshd:
            process.wait(5)
        self._sshd.clear()

    def start_dockerd(self) -> None:
        """Start the Docker daemon and wait until it answers."""
        self.dockerd.start()

    def stop_dockerd(self, *, crash: bool = False) -> None:
        """End the Docker daemon; its containers go on."""
        self.dockerd.stop(crash=crash)

    def tenant(self, gpu: int, pid: int, name: str, memory_by: int) -> None:
        """Let the vendor's tools say that a process is on a GPU."""
        file = self.namespace.folder / "tools" / "gpus.json"
        said = json.loads(file.read_text())
        said["tenants"].append({"gpu": gpu, "pid": pid, "name": name, "memory_by": memory_by})
        file.write_text(json.dumps(said))

    def settle(self) -> None:
        """As it was when it was new: reachable, its services up, no containers, empty homes, nobody's processes."""
        self.link_up()
        self.accept_packets()
        if not self.dockerd.answers():
            self.namespace.kill("dockerd", "containerd")
            self.start_dockerd()
        self.dockerd.remove_containers()
        self.kill_sshd()
        self._end_users()
        self.start_sshd()
        (self.namespace.folder / "tools" / "gpus.json").write_text(json.dumps({"tenants": []}))
        self.exec("sh", "-c", "rm -rf /home/*/* /home/*/.[!.]* /tmp/* /tmp/.[!.]*")

    def _end_users(self) -> None:
        """End the test user's processes: agents, shims, and what they started."""
        uid = HOME.stat().st_uid
        end = time.monotonic() + 10
        while time.monotonic() < end:
            mine = []
            for pid in self.namespace.processes():
                with suppress(OSError):
                    if (
                        Path(f"/proc/{pid}").stat().st_uid == uid
                        and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
                    ):
                        mine.append(pid)
            if not mine:
                return
            for pid in mine:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.01)

    def close(self) -> None:
        """End it and all in it."""
        self.namespace.close()
        with suppress(AssertionError):  # it went with the machine
            sh("ip", "link", "del", self.link)
        remove(self.namespace.folder)
        remove_cgroups(self.cgroups)


class _MachineDockerd(Dockerd):
    """A daemon whose clients run on its machine."""

    def client(self, *argv: str) -> list[str]:
        return self.namespace.enter(["docker", *argv])


class Many:
    """Machines to a client, one to us: an sshd on each of many addresses."""

    def __init__(self, folder: Path, count: int, keys: Keys) -> None:
        self._machine = Machine(folder, "many-hosts", 3, "cpu", keys)
        self.namespace = self._machine.namespace
        self.addresses = [f"10.77.3.{2 + n}" for n in range(count)]
        self.names = [f"server-{1 + n:02}" for n in range(count)]
        for address in self.addresses[1:]:
            sh(*self.namespace.enter(["ip", "addr", "add", f"{address}/24", "dev", "eth0"]))
        self._machine.start_sshd(self.addresses)
        for name, address in zip(self.names, self.addresses, strict=True):
            keys.know(name, address, self._machine.host_key)

    @property
    def ssh_config(self) -> Path:
        """A configuration for ssh and for a profile's `ssh: {config: ...}`."""
        return self._machine.ssh_config

    @property
    def machine(self) -> Machine:
        """The one machine behind them."""
        return self._machine

    def close(self) -> None:
        """End all of them."""
        self._machine.close()


class Machines:
    """The two hosts, and what they have in common."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.keys = Keys.make(folder / "keys")
        self.ssh_config = self.keys.folder / "config"
        with ExitStack() as stack:
            self.cuda = Machine(folder / "cuda", "cuda-host", 1, "nvidia", self.keys)
            stack.callback(self.cuda.close)
            self.rocm = Machine(folder / "rocm", "rocm-host", 2, "amd", self.keys)
            stack.callback(self.rocm.close)
            for machine in self.both:
                machine.start_sshd()
            for machine in self.both:
                machine.start_dockerd()
            self._stack = stack.pop_all()

    @property
    def both(self) -> tuple[Machine, Machine]:
        """cuda-host and rocm-host."""
        return self.cuda, self.rocm

    def load(self, image: Image) -> None:
        """Bring an image to each machine that has none of its name, to both at once."""
        wanted = [m for m in self.both if m.dockerd.run("image", "inspect", image.tag, check=False).returncode != 0]
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(machine.dockerd.load, image) for machine in wanted]:
                done.result()

    @contextmanager
    def many(self, count: int) -> Iterator[Many]:
        """`count` more machines, `.names` in the same SSH configuration, an sshd on each."""
        many = Many(self._folder / "many", count, self.keys)
        try:
            yield many
        finally:
            many.close()

    def close(self) -> None:
        """End both."""
        self._stack.close()


def _iptables(*words: str) -> None:
    sh("iptables", "-w", "10", *words)


def _wires_away() -> None:
    """Take away what an earlier session may have left on this machine's network."""
    for name in ("ekvi1", "ekvi2", "ekvi3"):
        with suppress(AssertionError):
            sh("ip", "link", "del", name)
    with suppress(AssertionError):
        sh("ip", "route", "del", "unreachable", _NET)
    for hook in ("INPUT", "OUTPUT", "FORWARD"):
        with suppress(AssertionError):
            _iptables("-D", hook, "-j", _CHAIN)
    for word in ("-F", "-X"):
        with suppress(AssertionError):
            _iptables(word, _CHAIN)


@contextmanager
def _wires() -> Iterator[None]:
    """This machine as the gateway between the others, for as long as it is needed."""
    _wires_away()
    before = _FORWARD.read_text()
    try:
        # While a link is down its addresses would else be looked for at the default gateway, in silence.
        sh("ip", "route", "add", "unreachable", _NET)
        _iptables("-N", _CHAIN)
        _iptables("-A", _CHAIN, "-i", "ekvi+", "-o", "ekvi+", "-j", "ACCEPT")
        for hook in ("INPUT", "OUTPUT", "FORWARD"):
            _iptables("-I", hook, "-j", _CHAIN)
        _FORWARD.write_text("1")
        yield
    finally:
        _FORWARD.write_text(before)
        _wires_away()


@contextmanager
def two_machines() -> Iterator[Machines]:
    """cuda-host and rocm-host, up in about two seconds; nothing of them is left afterwards."""
    with own_folder("m-") as folder, _wires():
        machines = Machines(folder)
        try:
            yield machines
        finally:
            machines.close()
