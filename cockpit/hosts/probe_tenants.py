"""Who is on a machine's GPUs, asked in one trip of whatever tool its vendor brought along."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.core.text import printable
from cockpit.hosts.base import Host

_MOST = 1000  # rows that are believed
_LONGEST = 120
_UNITS = {"B": 1, "KB": 1 << 10, "KIB": 1 << 10, "MB": 1 << 20, "MIB": 1 << 20, "GB": 1 << 30, "GIB": 1 << 30}

_NVIDIA = r"""
said() { printf '\n@@ %s\n' "$1"; }
said tool; command -v nvidia-smi || exit 0
said gpus; LC_ALL=C nvidia-smi --query-gpu=index,uuid --format=csv,noheader 2>&1; said rc; echo $?
q=gpu_uuid,pid,used_memory,process_name
said apps; LC_ALL=C nvidia-smi --query-compute-apps=$q --format=csv,noheader,nounits
said users; ps -eo pid=,user:32= 2>/dev/null
exit 0
"""

# Where neither tool is there, the driver itself tells: a process that has memory on a GPU has a file for it.
_AMD = r"""
said() { printf '\n@@ %s\n' "$1"; }
PATH=$PATH:/opt/rocm/bin
if command -v amd-smi >/dev/null 2>&1 && out=$(amd-smi process --json 2>/dev/null) && [ -n "$out" ]; then
  said amd-smi; printf '%s\n' "$out"
elif command -v rocm-smi >/dev/null 2>&1; then
  said rocm-smi; rocm-smi --showpids --json 2>/dev/null
  said rocm-smi-gpus; rocm-smi --showpidgpus --json 2>/dev/null
elif [ -d /sys/class/kfd/kfd/proc ]; then
  said nodes; for n in /sys/class/kfd/kfd/topology/nodes/*/gpu_id; do echo "$n $(cat "$n" 2>/dev/null)"; done
  said kfd; for f in /sys/class/kfd/kfd/proc/*/vram_*; do [ -e "$f" ] && echo "$f $(cat "$f" 2>/dev/null)"; done
fi
said users; ps -eo pid=,user:32=,comm= 2>/dev/null
exit 0
"""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process on a GPU: the GPU's index, the process's id, name and user, its memory there in bytes.

    None is unknown.
    """

    gpu: int | None
    pid: int
    name: str | None
    user: str | None
    memory_by: int | None


async def gpu_tenants(host: Host, vendor: str, gpus: Sequence[int] | None, *, timeout: float = 40.0) -> list[Tenant]:
    """The processes on the GPUs of `vendor` on `host`, by GPU and process id; `gpus` None is all of them.

    One whose GPU is unknown counts as on each. Raises ServerError where nothing there tells.
    """
    script = {"nvidia": _NVIDIA, "amd": _AMD}.get(vendor)
    if script is None:
        return []
    done = await host.run(["sh", "-c", script], timeout=timeout)
    if done.rc != 0:
        said = printable(done.last_words)[:_LONGEST]
        raise ServerError(f"{host.name} did not say who is on its GPUs: {said or f'status {done.rc}'}.")
    return [
        t for t in parse_tenants(vendor, done.stdout, host.name) if gpus is None or t.gpu is None or t.gpu in gpus
    ]


def parse_tenants(vendor: str, output: bytes, name: str) -> list[Tenant]:
    """The tenants that the script's output tells; `name` is the server's. Raises ServerError where it cannot tell."""
    said = _sections(printable(output.decode(errors="replace")))
    rows = list(_nvidia(said, name) if vendor == "nvidia" else _amd(said, name))[:_MOST]
    known = dict(_users(said.get("users", "")))
    out = []
    for row in rows:
        user, command = known.get(row.pid, (None, None))
        out.append(replace(row, user=user, name=row.name or command))
    return sorted(set(out), key=lambda t: (t.gpu if t.gpu is not None else 1 << 30, t.pid, t.memory_by or 0))


def _sections(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in f"\n{text}".split("\n@@ ")[1:]:
        title, _, body = part.partition("\n")
        found.setdefault(title.strip(), body.strip())
    return found


def _users(text: str) -> Iterator[tuple[int, tuple[str | None, str | None]]]:
    for line in text.splitlines():
        words = line.split(None, 2)
        pid = _whole(words[0]) if len(words) > 1 else None
        if pid is not None:
            yield pid, (words[1][:_LONGEST], words[2][:_LONGEST] if len(words) > 2 else None)


def _nvidia(said: Mapping[str, str], name: str) -> Iterator[Tenant]:
    if not said.get("tool"):
        raise ServerError(
            f"{name} cannot say who is on its GPUs: nvidia-smi is not there.", hint="It comes with the driver."
        )
    if said.get("rc") != "0":
        lines = said.get("gpus", "").splitlines()
        raise ServerError(
            f"{name} cannot say who is on its GPUs: nvidia-smi says {(lines or ['nothing'])[0][:200]!r}."
        )
    index = {}
    for line in said.get("gpus", "").splitlines():
        number, _, uuid = line.partition(",")
        index[uuid.strip()] = _whole(number.strip())
    for line in said.get("apps", "").splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        pid = _whole(cells[1]) if len(cells) == 4 else None
        if pid is not None:
            mib = _whole(cells[2].removesuffix("MiB").strip())
            yield Tenant(index.get(cells[0]), pid, _name(cells[3]), None, None if mib is None else mib << 20)


def _name(value: Any) -> str | None:
    """A program's name as a tool writes it; its own words for unknown are None."""
    text = printable(value).strip()[:_LONGEST] if isinstance(value, str) else ""
    return None if text.lower() in ("", "n/a", "[n/a]", "unknown", "[not found]", "-") else text


def _amd(said: Mapping[str, str], name: str) -> Iterator[Tenant]:
    if "amd-smi" in said:
        yield from _amd_smi(_json(said["amd-smi"], "["))
    elif "rocm-smi" in said:
        gpus = _rocm_system(said.get("rocm-smi-gpus", ""))
        for pid, value in _rocm_system(said["rocm-smi"]).items():
            yield from _rocm(pid, value, gpus.get(pid))
    elif "kfd" in said:
        yield from _kfd(said.get("nodes", ""), said["kfd"])
    else:
        raise ServerError(
            f"{name} cannot say who is on its GPUs: neither amd-smi nor rocm-smi is there, and no driver.",
            hint="They come with ROCm.",
        )


def _json(text: str, opening: str) -> Any:
    """The JSON value in a tool's output, which warnings may stand around; None where there is none."""
    at = min((i for i in (text.find(opening), text.find("{")) if i >= 0), default=-1)
    try:
        return json.JSONDecoder().raw_decode(text[at:])[0] if at >= 0 else None
    except (ValueError, RecursionError):
        return None


def _amd_smi(found: Any) -> Iterator[Tenant]:
    if isinstance(found, dict):
        found = found.get("gpu_data")
    for gpu in _dicts(found):
        for row in _dicts(gpu.get("process_list")):
            info = row.get("process_info")
            pid = _whole(info.get("pid")) if isinstance(info, dict) else None
            if isinstance(info, dict) and pid is not None:
                usage = info.get("memory_usage")
                vram = usage.get("vram_mem") if isinstance(usage, dict) else None
                memory = _size(vram if vram is not None else info.get("mem", info.get("mem_usage")))
                yield Tenant(_whole(gpu.get("gpu")), pid, _name(info.get("name")), None, memory)


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (v for v in value if isinstance(v, dict)) if isinstance(value, list) else iter(())


def _size(value: Any) -> int | None:
    """A size with its unit, {"value": 12, "unit": "MB"}, in bytes."""
    if isinstance(value, dict):
        unit = value.get("unit")
        factor = _UNITS.get(unit.upper()) if isinstance(unit, str) else None
        count = _whole(value.get("value"))
        return None if count is None or factor is None else count * factor
    return _whole(value)


def _rocm_system(text: str) -> dict[int, Any]:
    """rocm-smi's answer by process: {"system": {"PID123": ...}}."""
    found = _json(text, "{")
    system = found.get("system") if isinstance(found, dict) else None
    rows = system.items() if isinstance(system, dict) else ()
    return {pid: v for k, v in rows if k.startswith("PID") and (pid := _whole(k[3:].strip())) is not None}


def _rocm(pid: int, value: Any, gpus: Any) -> Iterator[Tenant]:
    """One process: `name, count of GPUs, bytes, ...`, and the GPUs' indices, `[0, 1]` as text or list."""
    cells = [c.strip() for c in value.split(",")] if isinstance(value, str) else []
    words = gpus if isinstance(gpus, list) else str(gpus or "").strip("[] ").replace(",", " ").split()
    indices: list[int | None] = [
        i for word in words if (i := _whole(word if isinstance(word, int) else str(word).strip("'\""))) is not None
    ]
    memory = _whole(cells[2]) if len(cells) > 2 and len(indices) < 2 else None  # of several GPUs it is the sum
    for index in indices or [None]:
        yield Tenant(index, pid, _name(cells[0]) if cells else None, None, memory)


def _kfd(nodes: str, rows: str) -> Iterator[Tenant]:
    """The driver's files: `.../nodes/N/gpu_id ID` (0 is a CPU), `.../proc/PID/vram_ID BYTES`."""
    order = []
    for line in nodes.splitlines():
        path, _, gpu_id = line.partition(" ")
        node = _whole(path.split("/")[-2]) if path.count("/") > 1 else None
        if node is not None and gpu_id not in ("", "0"):
            order.append((node, gpu_id))
    index = {gpu_id: i for i, (_, gpu_id) in enumerate(sorted(order))}
    for line in rows.splitlines():
        path, _, memory = line.partition(" ")
        parts = path.split("/")
        pid = _whole(parts[-2]) if len(parts) > 1 else None
        if pid is not None and _whole(memory) != 0:  # whoever opened the driver has an empty entry for every GPU
            yield Tenant(index.get(parts[-1].removeprefix("vram_")), pid, None, None, _whole(memory))


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 1 << 62 else None
    if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) < 19):
        return None
    return int(value)
