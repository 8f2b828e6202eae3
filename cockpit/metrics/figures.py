"""A run's figures of energy and power, each with its note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cockpit.metrics.nodes import Nodes
from cockpit.metrics.telemetry import Reading

_NO_TIME = "the log carries no time to align the energy readings with"
_NO_TOKENS = "the log does not say how many tokens a step holds"
_NO_BEGIN = "a log from elsewhere says when its iterations were, not when its program began"
_PARTS = ("energy_warmup_j", "energy_per_token_j", "tokens_per_j")


@dataclass(frozen=True, slots=True)
class Figures:
    """`readings` by metric; `source` is the scope and source of the energy, as the summary has it, or None."""

    readings: dict[str, Reading]
    source: dict[str, Any] | None


def energy_figures(
    ticks: Nodes, meta: Mapping[str, Any], window: tuple[float, float] | None, tokens: float | None
) -> Figures:
    """power_idle_w (before the run), energy_j, energy_above_idle_j and node_energy_j (whole run), energy_warmup_j,
    energy_per_token_j, tokens_per_j and node_power_w (steady part).

    `window` is the steady part (s, wall clock) with `tokens` in it; None where the log does not say. An imported
    log's run lasted from its first iteration to its last: what was drawn before was no idling.
    """
    lasted, own = ticks.span(meta), meta.get("id")
    imported = "imported" in (meta.get("provenance") or {})
    found = ticks.energy(lasted)
    whole = found.reading()
    idle = ticks.idle_w(lasted[0] if lasted else None, str(own) if own else None)
    idle = Reading(None, _NO_BEGIN) if imported and lasted else idle
    of = "first iteration to last" if imported else "whole run"
    out = {
        "power_idle_w": idle,
        "energy_j": Reading(whole.value, f"{of}; {whole.note}" if whole.value is not None else whole.note),
        "energy_above_idle_j": _above_idle(whole, idle, lasted),
        "node_power_w": ticks.node_power_w(window or lasted),
        "node_energy_j": ticks.node_energy_j(lasted),
    }
    if whole.value is None or window is None:
        why = whole.note if whole.value is None else _NO_TIME
        out.update({name: Reading(None, why) for name in _PARTS})
    else:
        first = "first iteration" if imported else "start" if lasted else "first reading"
        told = f"from the {first} to the steady part{'' if imported else ', start-up included'}"
        out.update(_parts(ticks, lasted, window, tokens, told))
    source = None if found.joules is None else {**found.to_json(), "power_kind": ticks.power_kinds()}
    return Figures(out, source)


def _parts(
    ticks: Nodes, lasted: tuple[float, float] | None, window: tuple[float, float], tokens: float | None, told: str
) -> dict[str, Reading]:
    """The warm-up apart, which `told` describes, and the steady part by its tokens."""
    before = ticks.energy_before(lasted[0] if lasted else None, window[0]).reading()
    part = ticks.energy(window).reading()
    out = {"energy_warmup_j": Reading(before.value, told if before.value is not None else before.note)}
    if not part.value or not tokens:
        why = Reading(None, part.note if not part.value else _NO_TOKENS)
        return {**out, "energy_per_token_j": why, "tokens_per_j": why}
    return {
        **out,
        "energy_per_token_j": Reading(part.value / tokens, part.note),
        "tokens_per_j": Reading(tokens / part.value, part.note),
    }


def _above_idle(whole: Reading, idle: Reading, lasted: tuple[float, float] | None) -> Reading:
    """The run's energy without what would have been drawn in that time anyway."""
    if whole.value is None or idle.value is None or lasted is None:
        return Reading(None, whole.note if whole.value is None else idle.note)
    above = whole.value - idle.value * (lasted[1] - lasted[0])
    return Reading(above, f"whole run, less {idle.value:.4g} W of idling; {idle.note}")
