"""A part of this machine with processes, mounts and devices of its own, which ends whole when its maker ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

ROOT = Path("/var/tmp/ekvi-test-hosts")  # on a disk: images go there, and overlays want no tmpfs below
_INSIDE = Path(__file__).with_name("inside.sh")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def wait_for(what: Callable[[], bool], seconds: float, why: str) -> None:
    """Poll until `what` holds; AssertionError that says `why` after `seconds`."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"after {seconds:g} s: {why}"
        time.sleep(0.01)


def sh(*argv: str | Path, timeout: float = 30.0) -> str:
    """Run a command here; its stdout. AssertionError with its words where it fails."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.returncode}"
    return done.stdout


class Namespace:
    """Processes, mounts and devices of its own (with `name` also network, host name, /run, /tmp and homes).

    It ends with `close()`, and, since its first process waits on a pipe of ours, also when we are killed.
    """

    def __init__(self, folder: Path, kind: str, name: str | None = None, address: str | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tools").mkdir(exist_ok=True)
        words = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--propagation", "slave"]
        own = ["--uts", "--net"] if name else []
        inside = [str(_INSIDE), str(folder), kind, *([name, address or ""] if name else [])]
        self._outer = subprocess.Popen(
            [*words, *own, *inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": PATH}
        )
        assert self._outer.stdout is not None
        assert self._outer.stdout.readline() == b"ready\n", f"the machine in {folder} did not start"
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self.pid = int(children[0])
        self._namespaces = ["--mount", "--pid", *own]
        self._services: list[subprocess.Popen[bytes]] = []

    def enter(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in here, as root."""
        return ["nsenter", "--target", str(self.pid), *self._namespaces, "--", *argv]

    def run(
        self, *argv: str, timeout: float = 60.0, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in here as root to its end, whatever it exits with."""
        return subprocess.run(
            self.enter(argv), input=stdin, capture_output=True, timeout=timeout, check=False, env={"PATH": PATH}
        )

    def spawn(self, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a service in here; its words go to `log`."""
        out: IO[bytes]
        with log.open("ab") as out:
            service = subprocess.Popen(
                self.enter(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={"PATH": PATH}
            )
        self._services.append(service)
        return service

    def processes(self, *names: str) -> list[int]:
        """Process ids (as seen from outside) of the programs in here, by name; all of them without names."""
        own = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if (entry / "ns" / "pid").readlink() == own and (
                    not names or (entry / "comm").read_text()[:-1] in names
                ):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone meanwhile
        return found

    def kill(self, *names: str, sig: int = signal.SIGKILL) -> int:
        """Send a signal to the programs of these names in here; how many there were."""
        pids = self.processes(*names)
        for pid in pids:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                continue
        return len(pids)

    def close(self) -> None:
        """End everything in here; its folder stays."""
        if self._outer.stdin is not None:
            self._outer.stdin.close()
        try:
            self._outer.wait(5)
        except subprocess.TimeoutExpired:
            self._outer.kill()
            self._outer.wait(5)
        for service in self._services:
            service.wait(5)
        if self._outer.stdout is not None:
            self._outer.stdout.close()


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file's lock, which the kernel frees with its holder; without `wait` False where another has it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """A folder below ROOT for as long as it is needed; those that a killed session left are removed first."""
    with ExitStack() as held:
        with locked(ROOT / "folders.lock"):
            _sweep()
            folder = ROOT / f"{prefix}{os.getpid()}-{os.urandom(3).hex()}"
            held.enter_context(locked(folder.with_suffix(".held")))
            folder.mkdir(mode=0o755)
        try:
            yield folder
        finally:
            remove(folder)
            folder.with_suffix(".held").unlink()


def _sweep() -> None:
    """Remove the folders that nobody holds any more."""
    for left in ROOT.glob("*.held"):
        with locked(left, wait=False) as free:
            if free:
                remove(left.with_suffix(""))
                remove_cgroups(f"ekvi-test-{left.stem}")
                left.unlink()


def remove(folder: Path) -> None:
    """Remove a machine's folder. Its mounts went with its namespace, which may take the kernel a moment."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.02)
    shutil.rmtree(folder)


def remove_cgroups(parent: str) -> None:
    """Remove the empty control groups that containers below `parent` left behind."""
    base = Path("/sys/fs/cgroup")
    for top in {p for pattern in (parent, f"*/{parent}") for p in base.glob(pattern)}:
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                continue  # still in use: the next session's start looks again
