"""What a run's telemetry tells of the machine it ran on, for its provenance: the GPUs, who else used them, events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.core.text import finite

if TYPE_CHECKING:
    from cockpit.metrics.telemetry import Telemetry

_KEPT = (
    *("index", "uuid", "bdf", "partition", "package_id", "model", "compute_mode", "memory_mode", "driver", "runtime"),
    *("vbios", "ecc", "numa_node", "mem_total", "power_limit_w", "power_limit_default_w", "power_limit_max_w"),
    *("power_kind", "power_scope", "clk_sm_max_mhz", "pcie", "links"),
)
_SOURCE = ("name", "ok", "version", "code", "text")
_MOST = 64  # neighbours and events that a run.json keeps


def origin(each: Sequence[Telemetry], meta: Mapping[str, Any]) -> dict[str, Any]:
    """`telemetry` (one entry a node: backend, sources, the run's GPUs), `neighbours` and `gpu_events`.

    Keys without anything to say are left out. `neighbours`: processes on the run's GPUs while it ran that were not
    its own: {"node", "pid", "name", "run", "mem" (By), "seconds", "share" (of the run), "gpus", "certain"}; empty
    where the lists were read and held nobody else, absent where nobody read them. `certain` is false where a process
    may be the run's own, because its environment could not be read.
    """
    out: dict[str, Any] = {}
    spoken = [_node(i, one, meta) for i, one in enumerate(each) if one.hello is not None]
    if spoken:
        out["telemetry"] = spoken
    windows = [_by_own_clock(one, each[0], meta) for one in each]
    if any(one.sightings.asked for one in each):
        found = [n for i, one in enumerate(each) for n in _neighbours(i, one, meta, windows[i])]
        out["neighbours"] = found[:_MOST]
    events = [{"node": i, **event} for i, one in enumerate(each) for event in one.sightings.events]
    events = [e for e in events if e["t"] is None or windows[e["node"]][0] <= e["t"] <= windows[e["node"]][1]]
    if events:
        out["gpu_events"] = events[:_MOST]
    told: dict[str, Any] = finite(out)
    return told


def span(meta: Mapping[str, Any]) -> tuple[float, float] | None:
    """From when the run's first process lived to its end (s, wall clock); None where that is not known."""
    began, ended = meta.get("started"), meta.get("ended")
    if isinstance(began, (int, float)) and isinstance(ended, (int, float)) and ended > began:
        return float(began), float(ended)
    return None


def _by_own_clock(one: Telemetry, first: Telemetry, meta: Mapping[str, Any]) -> tuple[float, float]:
    """The run's span, which the first node tells, by the clock of another node."""
    window = span(meta) or (-math.inf, math.inf)
    shift = first.moved_s - one.moved_s
    return window[0] + shift, window[1] + shift


def _node(node: int, one: Telemetry, meta: Mapping[str, Any]) -> dict[str, Any]:
    hello = one.hello or {}
    mine = meta.get("gpus")
    listed = [d for d in one.identities() if mine is None or d.get("index") in mine]
    sources = hello.get("sources")
    told = [s for s in sources if isinstance(s, Mapping)] if isinstance(sources, list) else []
    return {
        "node": node,
        "boot_id": hello.get("boot_id"),
        "backends": list(dict.fromkeys(str(h.get("backend")) for h in one.hellos if h.get("backend"))),
        "vendor": hello.get("vendor"),
        "hz": hello.get("hz"),
        "sources": [{k: s.get(k) for k in _SOURCE} for s in told],
        "devices": [{k: d.get(k) for k in _KEPT} for d in listed],
    }


def _neighbours(
    node: int, one: Telemetry, meta: Mapping[str, Any], window: tuple[float, float]
) -> list[dict[str, Any]]:
    run = meta.get("id")
    lasted = window[1] - window[0] if math.isfinite(window[1] - window[0]) else 0.0
    return [
        {
            "node": node,
            "pid": seen.pid,
            "name": seen.name,
            "run": seen.run,
            "mem": seen.mem,
            "seconds": round(seconds, 1),
            "share": round(min(1.0, seconds / lasted), 4) if lasted else None,
            "gpus": sorted(seen.gpus),
            "certain": certain,
        }
        for seen, seconds, certain in one.sightings.strangers(str(run) if run else None, window)
    ]
