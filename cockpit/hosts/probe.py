"""What a machine is, asked through its `Host`: facts for provenance, and whether a Python there can train."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cockpit.core.errors import LaunchRefused, ServerError
from cockpit.hosts.base import Completed, Host
from cockpit.hosts.probe_container import container_facts
from cockpit.hosts.probe_tenants import Tenant, gpu_tenants

__all__ = [
    "HostFacts", "Tenant", "check_python", "container_facts", "detect_vendor", "facts", "gpu_tenants", "parse_facts",
]  # fmt: skip

_MARK = "@@ "

# One trip for all facts: each `say NAME COMMAND...` prints a mark and what the command finds, or nothing.
_SCRIPT = r"""
say() { printf '@@ %s\n' "$1"; shift; "$@" 2>/dev/null; printf '\n'; }
say system uname -s
say kernel uname -r
say arch uname -m
say hostname uname -n
say cpuinfo sh -c "grep -m1 -E '^(model name|Model|cpu)[[:space:]]*:' /proc/cpuinfo"
say lscpu sh -c "LC_ALL=C lscpu | grep -m1 '^Model name'"
say cpu_brand sysctl -n machdep.cpu.brand_string
say cores getconf _NPROCESSORS_ONLN
say meminfo grep -m1 '^MemTotal' /proc/meminfo
say memsize sysctl -n hw.memsize
say os_release cat /etc/os-release
say sw_vers sw_vers -productVersion
say governor cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
say machine_id cat /etc/machine-id
say dbus_id cat /var/lib/dbus/machine-id
say uuid sysctl -n kern.uuid
say nvidia sh -c "[ -e /dev/nvidiactl ] || [ -e /proc/driver/nvidia ] && echo yes"
say amd sh -c "[ -e /dev/kfd ] && echo yes"
say python "$1" -c 'import platform; print(platform.python_version())'
exit 0
"""

# Looks for modules without importing them: torch alone takes seconds. find_spec imports the parents of a dotted
# name, which for megatron.core is a bare namespace. The entry "" (the current folder) would find look-alikes.
_FIND = """
import importlib.util, json, sys
sys.path = [p for p in sys.path if p]
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps({"version": list(sys.version_info[:3]), "missing": [n for n in sys.argv[1:] if not there(n)]}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """A machine as provenance records it; None is unknown.

    `logical_cores` counts those online, `memory_total_by` is in bytes. `host_id` is a short hash of the machine's
    id: it tells machines apart without naming them. `vendor` is nvidia, amd or cpu, by the driver that is loaded.
    `python` is the version of the interpreter that trains.
    """

    cpu_model: str | None
    logical_cores: int | None
    memory_total_by: int | None
    arch: str | None
    kernel: str | None
    os: str | None
    governor: str | None
    host_id: str | None
    hostname: str | None
    vendor: str
    python: str | None

    def to_json(self) -> dict[str, Any]:
        """The facts as they stand in a run's provenance."""
        return asdict(self)


async def facts(host: Host, python: str | None = None, *, timeout: float = 20.0) -> dict[str, Any]:
    """The facts of `host` as JSON values, see HostFacts; `python` is the interpreter there that trains.

    Raises ServerError.
    """
    return (await _ask(host, python, timeout)).to_json()


async def detect_vendor(host: Host, *, timeout: float = 20.0) -> str:
    """nvidia, amd or cpu, by the driver that is loaded on `host`. Raises ServerError."""
    return (await _ask(host, None, timeout)).vendor


async def _ask(host: Host, python: str | None, timeout: float) -> HostFacts:
    done = await host.run(["sh", "-c", _SCRIPT, "sh", python or "false"], timeout=timeout)
    if done.rc != 0:
        raise ServerError(f"{host.name} did not say what it is: {done.last_words or f'status {done.rc}'}.")
    return parse_facts(done.stdout)


def parse_facts(output: bytes) -> HostFacts:
    """The facts that the probe's output holds."""
    said = _sections(output.decode(errors="replace"))
    system, kernel = said.get("system"), said.get("kernel")
    darwin = f"macOS {said['sw_vers']}" if "sw_vers" in said else None
    machine = said.get("machine_id") or said.get("dbus_id") or said.get("uuid")
    return HostFacts(
        cpu_model=_after_colon(said.get("cpuinfo")) or _after_colon(said.get("lscpu")) or said.get("cpu_brand"),
        logical_cores=_number(said.get("cores")),
        memory_total_by=_memory(said),
        arch=said.get("arch"),
        kernel=f"{system} {kernel}" if system and kernel else kernel,
        os=_pretty_name(said.get("os_release")) or darwin,
        governor=said.get("governor"),
        host_id=hashlib.sha256(f"ekvi-cockpit {machine}".encode()).hexdigest()[:12] if machine else None,
        hostname=said.get("hostname"),
        vendor="nvidia" if "nvidia" in said else "amd" if "amd" in said else "cpu",
        python=said.get("python"),
    )


def _sections(text: str) -> dict[str, str]:
    """What each mark is followed by, stripped; marks with nothing after them are left out."""
    found: dict[str, str] = {}
    for part in f"\n{text}".split(f"\n{_MARK}")[1:]:
        name, _, body = part.partition("\n")
        if body.strip():
            found[name.strip()] = body.strip()
    return found


def _after_colon(line: str | None) -> str | None:
    return " ".join(line.partition(":")[2].split()) or None if line else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _memory(said: Mapping[str, str]) -> int | None:
    """Bytes of memory: Linux says `MemTotal:  N kB`, macOS N bytes."""
    words = said.get("meminfo", "").split()
    kib = _number(words[1]) if len(words) == 3 and words[2] == "kB" else None
    return kib * 1024 if kib is not None else _number(said.get("memsize"))


def _pretty_name(os_release: str | None) -> str | None:
    for line in (os_release or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


async def check_python(
    host: Host,
    python: str,
    modules: Sequence[str],
    *,
    minimum: tuple[int, int] = (3, 10),
    timeout: float = 30.0,
) -> list[str]:
    """Those of `modules` that `python` on `host` does not have, in their order; nothing is imported.

    Raises LaunchRefused where there is no such interpreter or it is older than `minimum`.
    """
    done = await host.run([python, "-c", _FIND, *modules], timeout=timeout)
    answer = _answer(done)
    if answer is None:
        raise LaunchRefused(
            f"{python} on {host.name} is no Python that runs: {done.last_words or f'status {done.rc}'}.",
            hint="Set the server's python to one that is there; without a container it is also the one that trains.",
        )
    version = tuple(int(part) for part in answer["version"])
    if version[:2] < minimum:
        raise LaunchRefused(
            f"{python} on {host.name} is Python {'.'.join(map(str, version))}; "
            f"{'.'.join(map(str, minimum))} or newer is needed.",
            hint="Set the server's python to a newer interpreter.",
        )
    return [str(name) for name in answer["missing"]]


def _answer(done: Completed) -> dict[str, Any] | None:
    """The last line of the look's output (a sitecustomize may print before it), where it is what was asked for."""
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.rc != 0 or not lines:
        return None
    try:
        answer = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and "version" in answer and "missing" in answer else None
