"""What is said at the end: one sentence for the header, and the whole comparison as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cockpit.core.state import RunState
from cockpit.engine.observer import Outcome


@dataclass(frozen=True, slots=True)
class Headline:
    """What stands below the header: the name of a colour, a sentence, and figures for where there is room."""

    colour: str
    sentence: str
    figures: str = ""


def headline(outcome: Outcome, runs: Iterable[RunState]) -> Headline:
    """What to say of how a session ended."""
    if outcome.comparison is not None:
        return _of_comparison(outcome.comparison)
    runs = list(runs)
    failed = [r for r in runs if r.state.failed]
    if outcome.state == "DETACHED":
        return Headline(
            "muted", "Detached: the group goes on by itself; `ekvi-cockpit attach last` follows it again."
        )
    if failed:
        reasons = "; ".join(dict.fromkeys(f"{r.state.value}: {r.reason or 'no reason given'}" for r in failed))
        return Headline("error", f"{len(failed)} of {len(runs)} runs did not finish ({reasons}).")
    return Headline("ok", f"All {len(runs)} runs are done; a comparison needs two sides.")


def full_text(comparison: Mapping[str, Any], width: int) -> str:
    """The whole comparison as the report prints it, at `width` columns.

    A recording may have been made by another version: of a document of another form the bare reasons are shown.
    """
    from cockpit.report import text

    try:
        return text(comparison, width=width, color=False)
    except (KeyError, TypeError, AttributeError):
        return "\n".join(f"{m.get('name')}: {m.get('why') or m.get('verdict')}" for m in _metrics(comparison)) + "\n"


def _of_comparison(comparison: Mapping[str, Any]) -> Headline:
    metric = next((m for m in _metrics(comparison) if m.get("primary")), None) or {}
    verdict = str(metric.get("verdict") or "")
    sentence = str(comparison.get("headline") or verdict.replace("_", " ") or "No verdict.")
    ratio = metric.get("ratio") or {}
    value, interval = ratio.get("value"), ratio.get("ci95")
    figures = ""
    if isinstance(value, float):
        figures = f"{metric.get('name')}: {ratio.get('side') or 'ratio'} {_percent(value)}"
        figures += f" [{_percent(interval[0])}, {_percent(interval[1])}]" if interval else ""
    colour = "ok" if verdict == "equivalent" else "accent" if verdict.endswith("_better") else "warn"
    refused = (comparison.get("parity") or {}).get("verdict") == "refused"
    return Headline("error" if refused else colour, sentence, figures)


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _metrics(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(comparison.get("metrics") or ())
