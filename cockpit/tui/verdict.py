"""What is said at the end: one sentence for the header, and the whole comparison as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cockpit.core.state import RunState
from cockpit.engine.observer import Outcome

_PRIMARY = ("tokens_per_s_gpu", "tokens_per_s", "time_to_target_min", "step_s")


def headline(outcome: Outcome, runs: Iterable[RunState]) -> tuple[str, str]:
    """The colour's name and the sentence that stand below the header."""
    comparison = outcome.comparison
    if comparison is not None:
        metric = primary(comparison)
        if metric is not None:
            return _colour(str(metric.get("verdict"))), _sentence(metric)
    runs = list(runs)
    failed = [r for r in runs if r.state.failed]
    if outcome.state == "DETACHED":
        return "muted", "Detached: the group goes on by itself; `ekvi-cockpit attach last` follows it again."
    if failed:
        reasons = "; ".join(dict.fromkeys(f"{r.state.value}: {r.reason or 'no reason given'}" for r in failed))
        return "error", f"{len(failed)} of {len(runs)} runs did not finish ({reasons})."
    return "ok", f"All {len(runs)} runs are done; a comparison needs two sides."


def primary(comparison: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The metric that the verdict is about: tokens/s a GPU where it is known, else the next best."""
    metrics = {m.get("name"): m for m in comparison.get("metrics") or ()}
    judged = [metrics[n] for n in _PRIMARY if n in metrics and metrics[n].get("verdict") != "not_comparable"]
    return next(iter(judged or metrics.values()), None)


def full_text(comparison: Mapping[str, Any]) -> str:
    """The whole comparison as the report prints it."""
    from cockpit.report import text

    return str(text(comparison))


def _sentence(metric: Mapping[str, Any]) -> str:
    verdict = str(metric.get("verdict") or "")
    if verdict.endswith("_better"):
        word = f"{verdict.removesuffix('_better')} is better"
    else:
        word = verdict.replace("_", " ")
    ratio = metric.get("ratio") or {}
    value, interval = ratio.get("value"), ratio.get("ci95")
    numbers = f" ×{value:.3f}" if isinstance(value, float) else ""
    if numbers and interval:
        numbers += f" [{interval[0]:.3f}, {interval[1]:.3f}]"
    return f"{metric.get('name')}: {word}{numbers}. {metric.get('why') or ''}".rstrip()


def _colour(verdict: str) -> str:
    if verdict == "equivalent":
        return "ok"
    return "accent" if verdict.endswith("_better") else "warn"
