"""What is said at the end: one sentence for the header, and the whole comparison as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cockpit.core.state import RunState
from cockpit.engine.observer import Outcome


def headline(outcome: Outcome, runs: Iterable[RunState]) -> tuple[str, str]:
    """The colour's name and the sentence that stand below the header."""
    if outcome.comparison is not None:
        return _of_comparison(outcome.comparison)
    runs = list(runs)
    failed = [r for r in runs if r.state.failed]
    if outcome.state == "DETACHED":
        return "muted", "Detached: the group goes on by itself; `ekvi-cockpit attach last` follows it again."
    if failed:
        reasons = "; ".join(dict.fromkeys(f"{r.state.value}: {r.reason or 'no reason given'}" for r in failed))
        return "error", f"{len(failed)} of {len(runs)} runs did not finish ({reasons})."
    return "ok", f"All {len(runs)} runs are done; a comparison needs two sides."


def full_text(comparison: Mapping[str, Any], width: int) -> str:
    """The whole comparison as the report prints it, at `width` columns.

    A recording may have been made by another version: of a document of another form the bare reasons are shown.
    """
    from cockpit.report import text

    try:
        return text(comparison, width=width, color=False)
    except (KeyError, TypeError, AttributeError):
        return "\n".join(f"{m.get('name')}: {m.get('why') or m.get('verdict')}" for m in _metrics(comparison)) + "\n"


def _of_comparison(comparison: Mapping[str, Any]) -> tuple[str, str]:
    metric = next((m for m in _metrics(comparison) if m.get("primary")), None) or {}
    verdict = str(metric.get("verdict") or "")
    said = str(comparison.get("headline") or verdict.replace("_", " ") or "No verdict.")
    ratio = metric.get("ratio") or {}
    value, interval = ratio.get("value"), ratio.get("ci95")
    if isinstance(value, float):
        said += f"  {metric.get('name')} {_percent(value)}"
        said += f" [{_percent(interval[0])}, {_percent(interval[1])}]" if interval else ""
    if (comparison.get("parity") or {}).get("verdict") == "refused":
        return "error", said
    return "ok" if verdict == "equivalent" else "accent" if verdict.endswith("_better") else "warn", said


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _metrics(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(comparison.get("metrics") or ())
