"""A comparison as markdown, for an issue, a wiki or a release note."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.report import numbers, standing


def markdown(comparison: Mapping[str, Any]) -> str:
    """An `ekvi.compare/1` document as markdown: verdict, figures, parity, scope, notes."""
    comparison = numbers.clean(comparison)
    parts = [f"## {_safe(comparison['headline'])}", *_why(comparison), _metrics(comparison), *_parity(comparison)]
    parts += [_loss(comparison["loss_parity"]), f"**Scope.** {_safe(comparison['scope'])}"]
    parts += [*_classes(comparison), *_published(comparison["published"]), *_notes(comparison)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _safe(text: object) -> str:
    """Text that stays text: no table cell, link, tag or emphasis of its own."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(str(text).split()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _why(comparison: Mapping[str, Any]) -> list[str]:
    return [_safe(m["why"]) for m in comparison["metrics"] if m["primary"] and m["why"]]


def _metrics(comparison: Mapping[str, Any]) -> str:
    sides = [s["name"] for s in comparison["sides"]]
    rows = [_metric(m, sides) for m in comparison["metrics"]]
    if not rows:
        return "No metric is known for any side."
    heads = [f"{_safe(s['name'])} ({len(s['runs'])} runs)" for s in comparison["sides"]]
    judged = ["against the first", "verdict"] if len(sides) > 1 else []
    legend = f"Geometric mean of the runs with its 95 % interval; {_safe(comparison['method'])}. "
    legend += "**Bold**: the primary figure, which alone carries the verdict."
    return f"{_table(['metric', 'unit', *heads, *judged], rows)}\n\n{legend}"


def _metric(metric: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    name = metric["name"]
    shown = f"**{_safe(name)}**" if metric["primary"] else _safe(name)
    row = [shown, _safe(numbers.unit(name, metric["unit"]))]
    for side in sides:
        found = metric["sides"][side]
        span = numbers.span(name, found["ci95"])
        row.append(numbers.number(name, found["value"]) + (f" ({span})" if span else ""))
    if len(sides) == 1:
        return row
    against = metric.get("against")
    if against:
        told = [f"{_safe(s)} {_ratio(a)}" for s, a in against.items()]
        return [*row, "<br>".join(told), _safe(metric["verdict"])]
    return [*row, _ratio(metric["ratio"]), _safe(metric["verdict"])]


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if not ratio or ratio.get("value") is None:
        return numbers.UNKNOWN
    span = numbers.change_span(ratio["ci95"])
    return numbers.change(ratio["value"]) + (f" ({span})" if span else "")


def _parity(comparison: Mapping[str, Any]) -> list[str]:
    parity = comparison["parity"]
    found = parity["differences"]
    if len(comparison["sides"]) < 2 and not found:
        return []
    head = f"**Parity: {parity['verdict']}.**" + ("" if found else " Nothing differs that was recorded.")
    if not found:
        return [head]
    names = [s["name"] for s in comparison["sides"]]
    rows = [
        [
            d["severity"],
            f"{_safe(d['key'])}",
            *(_safe(numbers.values(d["key"], d["values"].get(n))) for n in names),
            _safe(d["why"]),
        ]
        for d in found
    ]
    return [head, _table(["", "key", *map(_safe, names), "why"], rows)]


def _loss(parity: Mapping[str, Any]) -> str:
    apart, tolerance = numbers.relative(parity["max_rel_diff"]), numbers.relative(parity["tolerance"])
    apart_by = f"Curves apart by at most {apart}, tolerance {tolerance}"
    return f"**Loss: {parity['verdict']}.** {apart_by} ({_safe(parity['note'])})."


def _classes(comparison: Mapping[str, Any]) -> list[str]:
    """Where each side that was calibrated stands in its class."""
    out = []
    for side in comparison["sides"]:
        found = side.get("calibration")
        if found:
            head = f"**{_safe(side['name'])}, calibrated:** {_safe(found['headline'])}."
            told = [f"- {_safe(line)}" for line in [*standing.lines(found), *standing.slow(found)]]
            out += [head, "\n".join(told)]
    return [part for part in out if part]


def _published(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    cells = [
        [
            *(_safe(r[k]) for k in ("model", "gpu", "framework", "precision")),
            numbers.plain(r["tokens_per_s_gpu"]),
            f"<{r['source']}>"
            if str(r["source"]).startswith("https://") and " " not in r["source"]
            else _safe(r["source"]),
        ]
        for r in rows
    ]
    return [
        "**Published by others**",
        _table(["model", "GPU", "framework", "precision", "token/s/GPU", "source"], cells),
    ]


def _notes(comparison: Mapping[str, Any]) -> list[str]:
    whys = [f"{m['name']}: {m['why']}" for m in comparison["metrics"] if m["verdict"] == "not_comparable"]
    return ["\n".join(f"- {_safe(n)}" for n in [*whys, *comparison["notes"]])]
