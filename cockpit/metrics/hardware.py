"""What a comparison knows of the GPUs themselves: how they differ, who else used them, where their power is measured.

Sides of two makes differ in driver, VBIOS and links anyway: that is info. Between GPUs of one make, or of one model,
the same differences are conditions that a figure may hang on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cockpit.core.text import printable, size
from cockpit.metrics.sides import RunFacts, Side

CAPPED_BELOW = 0.99  # of the default power limit
SHARED_FROM = 0.1  # of the run's time: with another program for so long the figures are not this run's alone
NEIGHBOURS = "neighbours"
ENERGY = ("energy_per_token_j", "energy_j", "power_w")
_SAID = 3  # neighbours that are named for a side

Device = Mapping[str, Any]
Difference = dict[str, Any]

# key, its value of a device, alike among ("any", "make", "model"), severity and why there; elsewhere it is info
_KEYS: tuple[tuple[str, Callable[[Device], Any], str, str, str], ...] = (
    ("gpu.model", lambda d: d.get("model"), "none", "info", "another GPU, which is what is compared"),
    ("gpu.driver", lambda d: d.get("driver"), "make", "warning", "another driver"),
    (
        "gpu.runtime",
        lambda d: d.get("runtime"),
        "make",
        "info",
        "what the driver offers; the runner says what it used",
    ),
    ("gpu.vbios", lambda d: d.get("vbios"), "model", "warning", "another VBIOS: clocks and limits may be others"),
    ("gpu.ecc", lambda d: d.get("ecc"), "any", "warning", "ECC costs memory and its bandwidth"),
    ("gpu.power_limit_w", lambda d: d.get("power_limit_w"), "model", "warning", "another power cap"),
    ("gpu.compute_mode", lambda d: d.get("compute_mode"), "model", "warning", "the GPUs are divided otherwise"),
    ("gpu.memory_mode", lambda d: d.get("memory_mode"), "model", "warning", "their memory is divided otherwise"),
    ("gpu.clk_sm_max_mhz", lambda d: d.get("clk_sm_max_mhz"), "model", "warning", "another highest clock"),
    ("gpu.pcie_width", lambda d: (d.get("pcie") or {}).get("width"), "any", "warning", "more or fewer PCIe lanes"),
    ("gpu.links", lambda d: _links(d.get("links")), "make", "warning", "the GPUs are connected otherwise"),
    ("gpu.numa_node", lambda d: d.get("numa_node"), "none", "info", "at other NUMA nodes"),
)


def hardware_differences(sides: Sequence[Side]) -> list[Difference]:
    """Differences between the sides' GPUs, and what was wrong with those of any side, for parity."""
    if len(sides) < 2:
        return []
    found = [*_identities(sides), *_caps(sides), *_parts(sides), *_neighbours(sides), *_events(sides), *_power(sides)]
    return [f for f in found if f is not None]


def _devices(run: RunFacts) -> list[Device]:
    nodes = run.provenance.get("telemetry")
    listed = [n for n in nodes if isinstance(n, Mapping)] if isinstance(nodes, list) else []
    return [d for n in listed for d in n.get("devices") or () if isinstance(d, Mapping)]


def _links(links: Any) -> str | None:
    """`NVLink x18`, `PCIe x1 SYS` of a GPU's links; None where nobody says, or it is alone."""
    if not isinstance(links, list) or not links:
        return None
    told = [one for one in links if isinstance(one, Mapping)]
    kinds = {f"{one.get('kind')} x{one.get('count')} {one.get('path') or ''}".rstrip() for one in told}
    return ", ".join(sorted(kinds))


def _values(side: Side, read: Callable[[Device], Any]) -> list[Any]:
    """The distinct known values of a side's GPUs, sorted."""
    known = [v for run in side.counted for d in _devices(run) if (v := read(d)) is not None]
    distinct = {json.dumps(v, default=str): v for v in known}
    return [distinct[k] for k in sorted(distinct)]


def _shown(values: Sequence[Any]) -> Any:
    return None if not values else values[0] if len(values) == 1 else " | ".join(str(v) for v in values)


def _alike(sides: Sequence[Side]) -> set[str]:
    """Of what the sides' GPUs are the same: "any", "make", "model"."""
    makes = {str(run.meta.get("vendor")) for s in sides for run in s.counted}
    models = [_values(s, lambda d: d.get("model")) for s in sides]
    one_model = all(len(m) == 1 for m in models) and len({str(m[0]) for m in models}) == 1
    return {"any"} | ({"make"} if len(makes) == 1 else set()) | ({"model"} if one_model else set())


def _identities(sides: Sequence[Side]) -> list[Difference]:
    """What hello says of the GPUs, side by side."""
    told = [s for s in sides if s.counted]
    silent = [s.name for s in told if not _values(s, lambda d: d.get("index"))]
    with_gpus = [s for s in told if any(r.meta.get("vendor") != "cpu" for r in s.counted)]
    if not told or len(silent) == len(told) or len(with_gpus) < len(told):
        return []
    if silent:
        why = f"not recorded for {', '.join(silent)}: driver, power cap, ECC and the like cannot be compared"
        values = {s.name: _shown(_values(s, lambda d: d.get("model"))) for s in sides}
        return [{"key": "gpu", "values": values, "severity": "warning", "why": why}]
    alike = _alike(told)
    capped = bool(_caps(sides))
    out = []
    for key, read, among, severity, why in _KEYS:
        found = {s.name: _values(s, read) for s in told}
        if not all(found.values()) or len({json.dumps(v, default=str) for v in found.values()}) == 1:
            continue
        if key == "gpu.power_limit_w" and (capped or "model" not in alike):
            continue  # other models have other caps; one that was lowered is told by itself
        same = among in alike
        told_why = why if same or among == "none" else "of its device family"
        values = {s.name: _shown(found.get(s.name, [])) for s in sides}
        out.append({"key": key, "values": values, "severity": severity if same else "info", "why": told_why})
    return out


def _per_side(
    sides: Sequence[Side], key: str, severity: str, why: str, read: Callable[[Side], Any], nothing: str
) -> list[Difference]:
    """One difference where `read` finds something on any side; `nothing` is what a side without it has."""
    values = {s.name: read(s) for s in sides}
    if all(v is None for v in values.values()):
        return []
    described = {s.name for s in sides if any(_devices(r) for r in s.counted)}
    values = {name: nothing if v is None and name in described else v for name, v in values.items()}
    return [{"key": key, "values": values, "severity": severity, "why": why}]


def _caps(sides: Sequence[Side]) -> list[Difference]:
    def lowered(side: Side) -> str | None:
        caps = {
            (cap, usual)
            for run in side.counted
            for d in _devices(run)
            if (cap := _number(d.get("power_limit_w"))) and (usual := _number(d.get("power_limit_default_w")))
            if cap < CAPPED_BELOW * usual
        }
        return ", ".join(f"{cap:g} of {usual:g} W" for cap, usual in sorted(caps)) or None

    return _per_side(
        sides, "gpu.power_cap", "warning", "a cap below the default slows a GPU on purpose", lowered, "default"
    )


def _parts(sides: Sequence[Side]) -> list[Difference]:
    def part(side: Side) -> str | None:
        parts = [d for run in side.counted for d in _devices(run) if d.get("partition") is not None]
        return None if not parts else _shown(sorted({str(d.get("compute_mode") or "a partition") for d in parts}))

    found = _per_side(sides, "gpu.partition", "warning", "a part of a GPU counts as a GPU", part, "whole GPUs")
    same = found and len({str(v) for v in found[0]["values"].values()}) == 1
    return [] if same else found


def _neighbours(sides: Sequence[Side]) -> list[Difference]:
    """Who else was on the GPUs: blocking where it is certain and was for long, info where it may be the run's own."""
    every = [(s, n) for s in sides for r in s.counted for n in _listed(r, "neighbours")]
    if not every:
        return []
    certain = [n for _, n in every if n.get("certain")]
    long = [n for n in certain if (_number(n.get("share")) or 0.0) >= SHARED_FROM]
    if long:
        severity, why = "blocking", f"another program was on a GPU for {100 * SHARED_FROM:.0f} % of a run or more"
    elif certain:
        severity, why = "warning", "another program was on a GPU during a run"
    else:
        severity, why = "info", "processes whose environment cannot be read: they may be the run's own"
    values = {s.name: _named([n for side, n in every if side is s]) for s in sides}
    looked = {s.name for s in sides if any("neighbours" in r.provenance for r in s.counted)}
    values = {name: "none" if v is None and name in looked else v for name, v in values.items()}
    return [{"key": NEIGHBOURS, "values": values, "severity": severity, "why": why}]


def _listed(run: RunFacts, key: str) -> list[Mapping[str, Any]]:
    found = run.provenance.get(key)
    return [n for n in found if isinstance(n, Mapping)] if isinstance(found, list) else []


def _named(found: Sequence[Mapping[str, Any]]) -> str | None:
    """`python (pid 4711, 118 s, 38 GiB)`, the longest first."""
    if not found:
        return None
    words = []
    for one in sorted(found, key=lambda n: -(_number(n.get("seconds")) or 0.0)):
        seconds, mem = _number(one.get("seconds")), one.get("mem")
        facts = [
            f"pid {one.get('pid')}",
            f"{seconds:.0f} s" if seconds else "seen once",
            size(mem) if isinstance(mem, int) else "",
        ]
        words.append(f"{printable(str(one.get('name') or '?'))} ({', '.join(f for f in facts if f)})")
    words = list(dict.fromkeys(words))
    more = [f"and {len(words) - _SAID} more"] if len(words) > _SAID else []
    return ", ".join([*words[:_SAID], *more])


def _events(sides: Sequence[Side]) -> list[Difference]:
    def told(side: Side) -> str | None:
        found = {
            f"{e.get('event')} {e.get('value')} on GPU {e.get('index')}"
            for r in side.counted
            for e in _listed(r, "gpu_events")
        }
        return printable(", ".join(sorted(found)[:_SAID])) or None

    return _per_side(sides, "gpu.events", "warning", "a driver reported errors of a GPU during a run", told, "none")


_KINDS = (
    "instant and avg1s are a board's power, now or over a second; socket is without what the board around it loses"
)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _measured(side: Side, key: str) -> list[str]:
    """What the summaries of a side say of its energy: scope, src or power_kind, each value once."""
    found = [(r.summary.get("energy") or {}).get(key) for r in side.counted]
    flat = [x for f in found for x in (f if isinstance(f, list) else [f])]
    return sorted({str(x) for x in flat if x})


def _power(sides: Sequence[Side]) -> list[Difference]:
    """Where and how energy and power were measured."""
    out = []
    for key, name, severity, why in (
        ("power.scope", "scope", "warning", "energy and power are measured in another place"),
        ("energy.src", "src", "warning", "energy is counted by the sensor or integrated from power: they may part"),
        ("power.kind", "power_kind", "info", _KINDS),
    ):
        found = {s.name: _measured(s, name) for s in sides}
        known = [v for v in found.values() if v]
        if len(known) > 1 and len({tuple(v) for v in known}) > 1:
            mild = name == "src" and not any({"counter", "integrated"} <= {*a, *b} for a in known for b in known)
            values = {n: _shown(v) for n, v in found.items()}
            out.append({"key": key, "values": values, "severity": "info" if mild else severity, "why": why})
    return out


def _kind(scopes: Sequence[str]) -> set[str]:
    """What the scopes are of, in kind: a GPU's own sensor and its package's both hold the whole GPU."""
    return {"gpu" if part in ("gpu", "package") else part for scope in scopes for part in scope.split("+")}


def energy_apart(name: str, first: Side, other: Side) -> str | None:
    """Why metric `name` of two sides may not be set side by side, or None: their energy is of other things."""
    if name not in ENERGY:
        return None
    a, b = _measured(first, "scope"), _measured(other, "scope")
    if not a or not b or _kind(a) == _kind(b):
        return None
    words = {"cpu": "the CPU packages", "gpu": "the GPUs"}
    told = [" and ".join(words.get(k, k) for k in sorted(_kind(x))) for x in (a, b)]
    return f"{name} is of {told[0]} for {first.name} and of {told[1]} for {other.name}: these are not the same thing."


def energy_notes(sides: Sequence[Side]) -> list[str]:
    """Of what and how energy and power are measured, and that small differences mean little where that differs."""
    said = []
    for side in sides:
        measured = [_measured(side, key) for key in ("scope", "src", "power_kind")]
        if any(measured):
            how = ", ".join(" and ".join(values) for values in measured[1:] if values)
            said.append((side.name, f"scope {' and '.join(measured[0]) or '?'}{f', {how}' if how else ''}"))
    if len({how for _, how in said}) == 1:
        return [f"Energy and power: {said[0][1]}{' on all sides' if len(said) > 1 else ''}."]
    each = "; ".join(f"{name}: {how}" for name, how in said)
    return (
        [f"Energy and power are not measured alike ({each}): small differences may come from that."] if said else []
    )
