"""A look around a machine before anything is started there: room, rights, devices, load, clock, and who is about.

Each question is one trip, answered by a POSIX shell there in lines of `name=value`. What a server says is data:
parsed with care, its control characters taken out, and None where it did not say.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.core.text import printable
from cockpit.core.text import size as plain_size
from cockpit.hosts.base import Host

_LONGEST = 200  # characters of a value that a sentence may quote
_CLOCK_TRIPS = 4
_DF = re.compile(r"\s(\d{1,19})\s+(\d{1,19})\s+(\d{1,19})\s+\d+%\s")

# $1 is a folder that need not exist yet, the others are paths to look for. The write is a real one: rights, quotas
# and read-only file systems all say no in their own way.
_SCRIPT = r"""
say() { printf '%s=%s\n' "$1" "$(printf %s "$2" | head -n 1)"; }
full() { case $1 in "~"|"~/"*) printf %s "${HOME:-}${1#"~"}";; *) printf %s "$1";; esac; }
disk() { LC_ALL=C df -Pk "$1" 2>/dev/null | tail -n 1; }
say user "$(id -un 2>/dev/null || id -u)"
p=$1; shift
while [ ! -e "$p" ] && [ "$p" != / ] && [ "$p" != . ]; do p=$(dirname "$p"); done
say at "$p"
say disk "$(disk "$p")"
if t=$(LC_ALL=C mktemp "$p/.ekvi-XXXXXX" 2>&1); then
  said=$( (head -c 65536 /dev/zero > "$t") 2>&1) && say write yes || say refused "$said"
  rm -f "$t"
else
  say refused "$t"
fi
i=0
for m in "$@"; do
  [ -e "$(full "$m")" ] && say "path$i" yes || say "path$i" no
  i=$((i + 1))
done
[ -e /dev/kfd ] && say kfd yes
[ -r /dev/kfd ] && [ -w /dev/kfd ] && say kfd_open yes
set -- /dev/dri/renderD*
[ -e "$1" ] && say renders $#
[ -e /dev/nvidiactl ] || [ -e /proc/driver/nvidia ] && say nvidia yes
say shm "$(disk /dev/shm)"
say memory_kb "$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
say free_kb "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)"
say load "$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null)"
say cores "$(getconf _NPROCESSORS_ONLN 2>/dev/null)"
LC_ALL=C ps -eo user:32=,etimes=,pcpu=,comm= --sort=-pcpu 2>/dev/null | head -n 6 | sed 's/^/busy=/'
exit 0
"""

_DISK = r"""printf 'disk=%s\n' "$(LC_ALL=C df -Pk "$1" 2>/dev/null | tail -n 1)" """

_GPUS_AMD = r"""
for d in /sys/class/drm/renderD*/device; do
  [ "$(cat "$d/vendor" 2>/dev/null)" = 0x1002 ] || continue
  printf 'gpu=%s\nmemory=%s\n' "$(cat "$d/product_name" 2>/dev/null)" "$(cat "$d/mem_info_vram_total" 2>/dev/null)"
done
printf 'driver=%s\n' "$(cat /sys/module/amdgpu/version 2>/dev/null)"
exit 0
"""

# A process in a container says so in its cgroup, one of ours in its environment, where we may read that.
_WHOSE = r"""
for p in "$@"; do
  printf 'run=%s %s\n' "$p" "$(tr '\0' '\n' < "/proc/$p/environ" 2>/dev/null | sed -n 's/^EKVI_RUN=//p' | head -n 1)"
  printf 'container=%s %s\n' "$p" "$(grep -oE '[0-9a-f]{64}' "/proc/$p/cgroup" 2>/dev/null | head -n 1)"
done
exit 0
"""

# Only what is said here leaves the machine: a whole `inspect` would bring other people's environments along.
_CONTAINERS = r"""
ids=$("$1" ps -q --no-trunc) || exit 1
[ -z "$ids" ] || "$1" inspect --format "$2" $ids
"""
_SAID = '{{.ID}}\t{{.Name}}\t{{.Config.Image}}\t{{index .Config.Labels "ekvi.run"}}\t{{json .HostConfig.Devices}}'
_SAID_DOCKER = _SAID + "{{json .HostConfig.DeviceRequests}}"
_GPU_SIGNS = ("/dev/kfd", "/dev/nvidia", "nvidia.com/gpu", '"gpu"')


@dataclass(frozen=True, slots=True)
class Busy:
    """A process that computes. `share` 1.0 is one core, over its whole life."""

    user: str
    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A machine as it is now; sizes in bytes, None is unknown.

    `at` is the nearest folder that exists of the one asked for, `left_by` the space that its user may still take,
    `refused` why nothing can be written there. `there` answers for each path. `renders` counts /dev/dri/renderD*.
    """

    user: str | None
    at: str
    left_by: int | None
    refused: str | None
    there: tuple[bool, ...]
    nvidia: bool
    kfd: bool
    kfd_open: bool
    renders: int
    shm_by: int | None
    memory_by: int | None
    free_by: int | None
    load: float | None
    cores: int | None
    busy: tuple[Busy, ...]


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that a driver shows. `count` None where it does not say, `problem` why it does not.

    `memory_by` is each GPU's own memory in bytes, None where it is not told.
    """

    count: int | None
    models: tuple[str, ...] = ()
    driver: str | None = None
    problem: str | None = None
    memory_by: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a server's clock is ahead of ours, give or take `error_s`; `trip_s` is the fastest round trip."""

    offset_s: float
    error_s: float
    trip_s: float


@dataclass(frozen=True, slots=True)
class Whose:
    """Where a process belongs: a run of ours, a container by its id."""

    run: str | None
    container: str | None


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs. `run` is the run of ours in it; `gpu` whether it was given GPUs."""

    id: str
    name: str
    image: str
    run: str | None
    gpu: bool


async def around(host: Host, folder: str, paths: Sequence[str] = (), *, timeout: float = 30.0) -> Look:
    """What `host` is like for work in `folder`, and which of `paths` are there. Raises ServerError."""
    done = await host.run(["sh", "-c", _SCRIPT, "sh", folder, *paths], timeout=timeout)
    if done.rc != 0:
        raise ServerError(f"{host.name} did not say what it is like: {done.last_words or f'status {done.rc}'}.")
    return parse_look(done.stdout, len(paths))


def parse_look(output: bytes, paths: int) -> Look:
    """The look that the script's output tells."""
    pairs = _pairs(output)
    said = dict(pairs)
    return Look(
        user=said.get("user"),
        at=said.get("at", "/"),
        left_by=_disk(said.get("disk"))[1],
        refused=None if "write" in said else said.get("refused", "no reason was given"),
        there=tuple(said.get(f"path{i}") == "yes" for i in range(paths)),
        nvidia="nvidia" in said,
        kfd="kfd" in said,
        kfd_open="kfd_open" in said,
        renders=_whole(said.get("renders")) or 0,
        shm_by=_disk(said.get("shm"))[0],
        memory_by=_kib(said.get("memory_kb")),
        free_by=_kib(said.get("free_kb")),
        load=_real(said.get("load")),
        cores=_whole(said.get("cores")),
        busy=tuple(b for key, value in pairs if key == "busy" and (b := _busy(value)) is not None),
    )


async def gpus(host: Host, vendor: str, *, timeout: float = 30.0) -> Gpus:
    """The GPUs of `vendor` that the driver on `host` shows. Raises ServerError."""
    if vendor == "amd":
        return await _gpus_amd(host, timeout)
    query = ["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    done = await host.run(query, timeout=timeout)
    if done.rc == 127:
        return Gpus(None, problem="nvidia-smi is not there")
    rows = [[cell.strip() for cell in line.split(",")] for line in _text(done.stdout).splitlines()]
    rows = [row for row in rows if len(row) >= 3 and row[0].isdecimal()]
    if done.rc != 0 or not rows:
        said = printable(done.last_words)[:_LONGEST] or f"status {done.rc}"
        return Gpus(None, problem=f"nvidia-smi says: {said}")
    memory = tuple(_mebibytes(row[3]) if len(row) > 3 else None for row in rows)
    return Gpus(len(rows), tuple(row[1] for row in rows), rows[0][2], memory_by=memory)


async def _gpus_amd(host: Host, timeout: float) -> Gpus:
    """AMD's by amd-smi, else by what the kernel shows."""
    done = await host.run(["amd-smi", "static", "--asic", "--driver", "--vram", "--json"], timeout=timeout)
    said = _json(done.stdout) if done.rc == 0 else None
    rows = said.get("gpu_data") if isinstance(said, dict) else said  # a bare list before ROCm 7
    if isinstance(rows, list) and rows:
        driver = _inner(rows[0], "driver", "version")
        models = tuple(name for row in rows if (name := _inner(row, "asic", "market_name")))
        return Gpus(len(rows), models, driver, memory_by=tuple(_vram(row) for row in rows))
    done = await host.run(["sh", "-c", _GPUS_AMD], timeout=timeout)
    pairs = _pairs(done.stdout, empty=True)
    names = [value for key, value in pairs if key == "gpu"]
    memory = tuple(int(value) if value.isdecimal() else None for key, value in pairs if key == "memory")
    return Gpus(len(names) or None, tuple(n for n in names if n), dict(pairs).get("driver") or None, memory_by=memory)


def _mebibytes(text: str) -> int | None:
    """Bytes of a number of MiB; None for what is none, such as [N/A]."""
    return int(text) << 20 if text.isdecimal() and len(text) < 12 else None


def _vram(row: Any) -> int | None:
    """Bytes of a GPU's memory in amd-smi's words, whose MB are 1,048,576 bytes."""
    part = row.get("vram") if isinstance(row, dict) else None
    size = part.get("size") if isinstance(part, dict) else None
    value = size.get("value") if isinstance(size, dict) else size
    return _mebibytes(str(value).split(" ", 1)[0])


def _json(output: bytes) -> Any:
    try:
        return json.loads(output.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _inner(row: Any, section: str, key: str) -> str | None:
    part = row.get(section) if isinstance(row, dict) else None
    value = part.get(key) if isinstance(part, dict) else None
    return printable(value)[:_LONGEST] if isinstance(value, str) else None


async def clock(host: Host, *, timeout: float = 20.0) -> Clock | None:
    """The clock of `host` against ours by the midpoint of the fastest of a few trips; None where it has no seconds.

    Raises ServerError.
    """
    best: Clock | None = None
    for _ in range(_CLOCK_TRIPS):
        started, before = time.time(), time.monotonic()
        done = await host.run(["date", "+%s.%N"], timeout=timeout)
        trip = time.monotonic() - before
        there = _real(_text(done.stdout).strip())
        if done.rc != 0 or there is None:
            return None
        if best is None or trip < best.trip_s:
            best = Clock(there - (started + trip / 2), trip / 2, trip)
    return best


async def left_by(host: Host, folder: str, *, timeout: float = 20.0) -> int | None:
    """The space in bytes that is left where `folder` stands, None where that cannot be said. Raises ServerError."""
    done = await host.run(["sh", "-c", _DISK, "sh", folder], timeout=timeout)
    return _disk(dict(_pairs(done.stdout)).get("disk"))[1]


async def whose(host: Host, pids: Sequence[int], *, timeout: float = 20.0) -> dict[int, Whose]:
    """Which run of ours and which container each of `pids` belongs to, as far as we may look. Raises ServerError."""
    if not pids:
        return {}
    done = await host.run(["sh", "-c", _WHOSE, "sh", *map(str, pids)], timeout=timeout)
    said: dict[tuple[str, str], str] = {}
    for key, value in _pairs(done.stdout):
        pid, _, word = value.partition(" ")
        said[key, pid] = word
    return {
        pid: Whose(said.get(("run", str(pid))) or None, said.get(("container", str(pid))) or None) for pid in pids
    }


async def containers(host: Host, engine: str, *, timeout: float = 30.0) -> list[Container]:
    """The containers that run on `host` under `engine`. Raises ServerError."""
    said = _SAID_DOCKER if engine == "docker" else _SAID
    done = await host.run(["sh", "-c", _CONTAINERS, "sh", engine, said], timeout=timeout)
    if done.rc != 0 and not done.stdout:
        raise ServerError(f"{engine} on {host.name} does not list its containers: {printable(done.last_words)}.")
    rows = [line.split("\t") for line in _text(done.stdout).splitlines()]
    return [
        Container(row[0], row[1].lstrip("/"), row[2], row[3] or None, any(sign in row[4] for sign in _GPU_SIGNS))
        for row in rows
        if len(row) == 5
    ]


def _text(data: bytes) -> str:
    return printable(data.decode(errors="replace"))


def _pairs(output: bytes, *, empty: bool = False) -> list[tuple[str, str]]:
    """The lines of `name=value`, those without a value left out unless `empty`."""
    out = []
    for line in _text(output).splitlines():
        key, equals, value = line.partition("=")
        if equals and (value.strip() or empty):
            out.append((key, value.strip()[:_LONGEST]))
    return out


def _busy(line: str) -> Busy | None:
    """A row of ps: user, seconds it lives, percent, name; None for one too young to judge (ps itself)."""
    words = line.split(None, 3)
    seconds, percent = (_real(words[1]), _real(words[2])) if len(words) == 4 else (None, None)
    if seconds is None or percent is None or seconds < 5:
        return None
    return Busy(words[0], words[3], percent / 100)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


def _disk(row: str | None) -> tuple[int | None, int | None]:
    """Size and free bytes of a row of `df -Pk`."""
    found = _DF.search(row or "")
    return (int(found[1]) * 1024, int(found[3]) * 1024) if found else (None, None)


def _kib(text: str | None) -> int | None:
    value = _whole(text)
    return None if value is None else value * 1024


def _real(text: str | None) -> float | None:
    """A plain decimal number; what else float() takes (nan, 1e999, 1_0) is none."""
    whole, _, fraction = (text or "").partition(".")
    digits = whole + fraction
    return (
        float(f"{whole or 0}.{fraction or 0}") if digits.isascii() and digits.isdigit() and len(digits) < 40 else None
    )


def size(by: int | None) -> str:
    """Bytes in words: 12.3 GB."""
    return "unknown" if by is None else plain_size(by)
