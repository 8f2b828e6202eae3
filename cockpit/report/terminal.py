"""A comparison and a summary for a terminal: text at 80 columns, coloured where it is a terminal that wants it."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cockpit.report import numbers, standing

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_SEVERITY = {"blocking": "bold red", "warning": "yellow", "info": "dim"}
_INFO_SHOWN = 6


def text(comparison: Mapping[str, Any], *, width: int | None = None, color: bool | None = None) -> str:
    """An `ekvi.compare/1` document for a terminal, ending in a newline.

    `width` in columns is the terminal's (80 where there is none), `color` None asks the terminal and NO_COLOR.
    """
    comparison = numbers.clean(comparison)
    parts: list[RenderableType] = [_headline(comparison), "", _figures(comparison), "", *_classes(comparison)]
    parts += [*_parity(comparison), *_loss(comparison), *_end(comparison)]
    return _render(parts, width, color)


def summary_text(summary: Mapping[str, Any], *, width: int | None = None, color: bool | None = None) -> str:
    """An `ekvi.summary/1` document for a terminal, ending in a newline; unknown figures with their reason."""
    from rich.text import Text

    summary = numbers.clean(summary)
    metrics, it = summary["metrics"], summary["iterations"]
    gpu = summary["gpu"]
    device = (
        f"{gpu['count']} x {gpu['model'] or 'GPU'}" if gpu["count"] else "no GPU" if gpu["count"] == 0 else "GPU n/a"
    )
    head = Text.assemble((str(summary["id"]), "bold"), f"  {summary['state']}")
    where = f"{summary['server']} ({summary['vendor'] or 'vendor unknown'}, {device})"
    known = {n: m for n, m in metrics.items() if m["value"] is not None}
    parts: list[RenderableType] = [head, where, *_measured(summary)]
    if not it["total"]:
        parts.append("no iteration in its log, so no speed and no loss")
        others = (
            f"{n} {numbers.number(n, m['value'])} {numbers.unit(n, m['unit'])}".strip() for n, m in known.items()
        )
        return _render([*parts, Text(", ".join(others), "dim")] if known else parts, width, color)
    counted = f"{it['total']} iterations, {it['warmup_dropped']} dropped as warm-up, {it['steady']} steady"
    parts += [counted, *([Text(it["note"], "dim")] if it.get("note") else [])]
    parts += ["", _metric_table(known) if known else "No figure is known."]
    parts += _by_note("Notes", known)
    if summary["state"] == "SUCCEEDED":
        return _render([*parts, *_unknown(metrics)], width, color)
    missing = len(metrics) - len(known)
    parts += ["", Text(f"{missing} more are not known; the JSON says why", "dim")] if missing else []
    return _render(parts, width, color)


def _measured(summary: Mapping[str, Any]) -> list[RenderableType]:
    """What a calibration found, where the run had one, and where that stands in the GPU's class."""
    found = summary.get("calibration")
    return [] if not found else [*_class(found), ""]


def _class(found: Mapping[str, Any]) -> list[RenderableType]:
    """A server's standing: a sentence, its figures, and the devices that are slow."""
    from rich.text import Text

    lines: list[RenderableType] = [Text.assemble(("Calibrated: ", "bold"), f"{found['headline']}.")]
    lines += [Text(f"  {line}") for line in standing.lines(found)]
    return [*lines, *(Text(f"  {line}", "yellow") for line in standing.slow(found))]


def _render(parts: Sequence[RenderableType], width: int | None, color: bool | None) -> str:
    from rich.console import Console

    tty = sys.stdout.isatty()
    wanted = color if color is not None else tty and not os.environ.get("NO_COLOR")
    columns = width or (shutil.get_terminal_size((80, 24)).columns if tty else 80)
    out = io.StringIO()
    console: Console = Console(
        file=out,
        width=max(40, min(columns, 140)),
        force_terminal=wanted,
        color_system="standard" if wanted else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for part in parts:
        console.print(part, soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _headline(comparison: Mapping[str, Any]) -> Text:
    from rich.text import Text

    primary = next((m for m in comparison["metrics"] if m["primary"]), None)
    verdict = str(primary["verdict"]) if primary else ""
    style = "bold green" if verdict.endswith("_better") or verdict == "equivalent" else "bold yellow"
    if comparison["parity"]["verdict"] == "refused":
        style = "bold red"
    why = f"\n{primary['why']}" if primary and primary["why"] else ""
    return Text.assemble((comparison["headline"], style), why)


def _grid(*heads: tuple[str, str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for name, justify in heads:
        table.add_column(Text(name), justify="right" if justify == "right" else "left", overflow="fold")
    return table


def _two(top: str, below: str, style: str = "") -> Text:
    from rich.text import Text

    return Text.assemble((top, style), (f"\n{below}" if below else "", "dim"))


def _figures(comparison: Mapping[str, Any]) -> RenderableType:
    if not comparison["metrics"]:
        return "No metric is known for any side."
    return _side_by_side(comparison) if len(comparison["sides"]) <= 2 else _one_below_another(comparison)


def _side_by_side(comparison: Mapping[str, Any]) -> Table:
    sides = comparison["sides"]
    heads = [(f"{s['name']}\n{_runs(s)}", "right") for s in sides]
    judged = [(f"{sides[1]['name']} against {sides[0]['name']}\n(95 % interval)", "left")] if len(sides) > 1 else []
    table = _grid(("metric", "left"), *heads, *judged)
    for metric in comparison["metrics"]:
        name = metric["name"]
        cells = [_name(metric), *(_value(name, metric["sides"][s["name"]], len(s["runs"])) for s in sides)]
        if len(sides) > 1:
            cells.append(_ratio(metric["ratio"], metric["verdict"]))
        table.add_row(*cells)
    return table


def _name(metric: Mapping[str, Any]) -> Text:
    star = " *" if metric["primary"] else ""
    return _two(metric["name"] + star, numbers.unit(metric["name"], metric["unit"]), "bold" if star else "")


def _runs(side: Mapping[str, Any]) -> str:
    count = len(side["runs"])
    return f"{count} run{'s' * (count != 1)}"


def _value(name: str, found: Mapping[str, Any], runs: int) -> Text:
    fewer = f" (n={found['n']})" if found["value"] is not None and found["n"] != runs else ""
    return _two(numbers.number(name, found["value"]) + fewer, numbers.span(name, found["ci95"]))


def _ratio(ratio: Mapping[str, Any] | None, verdict: object) -> Text:
    from rich.text import Text

    value = ratio.get("value") if ratio else None
    span = numbers.change_span(ratio["ci95"]) if ratio and value is not None else ""
    word = str(verdict)
    style = "green" if word.endswith("_better") else "" if word == "equivalent" else "yellow"
    return Text.assemble(numbers.change(value), (f" ({span})" if span else "", "dim"), (f"\n{word}", style))


def _one_below_another(comparison: Mapping[str, Any]) -> Table:
    """More than two sides: a line each, under every metric."""
    first = comparison["sides"][0]["name"]
    table = _grid(("metric, side", "left"), ("value", "right"), (f"against {first}", "left"))
    for metric in comparison["metrics"]:
        name = metric["name"]
        lead = _name(metric)
        lead.plain = lead.plain.replace("\n", ", ")
        table.add_row(lead, "", "")
        for side in comparison["sides"]:
            against = (metric.get("against") or {}).get(side["name"])
            value = _value(name, metric["sides"][side["name"]], len(side["runs"]))
            table.add_row(
                _two(f"  {side['name']}", ""), value, _ratio(against, against["verdict"]) if against else ""
            )
    return table


def _parity(comparison: Mapping[str, Any]) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    parity = comparison["parity"]
    found = list(parity["differences"])
    if len(comparison["sides"]) < 2 and not found:
        return []
    counts = [f"{n} {s}" for s in _SEVERITY if (n := sum(d["severity"] == s for d in found))]
    told = ", ".join(counts) if counts else "nothing differs that was recorded"
    worst = next((style for name, style in _SEVERITY.items() if any(d["severity"] == name for d in found)), "")
    head = Text.assemble(("Parity: ", "bold"), (parity["verdict"], worst if parity["verdict"] != "fair" else "green"))
    head.append(f" ({told})")
    if not found:
        return [head, ""]
    infos = [d for d in found if d["severity"] == "info"]
    shown = [d for d in found if d["severity"] != "info"] + infos[:_INFO_SHOWN]
    table = Table.grid(padding=(0, 2, 0, 0))
    for one in shown:
        values = ", ".join(
            f"{s['name']}: {numbers.values(one['key'], one['values'].get(s['name']))}" for s in comparison["sides"]
        )
        said = Text.assemble((one["key"], "bold"), f"  {values}", (f" ({one['why']})", "dim"))
        table.add_row(Text(one["severity"], _SEVERITY[one["severity"]]), said)
    hidden = len(found) - len(shown)
    more = [Text(f"and {hidden} more of kind info, in the JSON", "dim")] if hidden else []
    return [head, table, *more, ""]


def _classes(comparison: Mapping[str, Any]) -> list[RenderableType]:
    """Where each side that was calibrated stands in its class."""
    from rich.text import Text

    found = [(s["name"], s["calibration"]) for s in comparison["sides"] if s.get("calibration")]
    return [part for name, one in found for part in (Text(f"{name}", "bold"), *_class(one), "")]


def _loss(comparison: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    if len(comparison["sides"]) < 2:
        return []
    found = comparison["loss_parity"]
    head = Text.assemble(("Loss: ", "bold"), str(found["verdict"]))
    if found["max_rel_diff"] is None:
        return [head.append(f" ({found['note']})")]
    apart, tolerance = numbers.relative(found["max_rel_diff"]), numbers.relative(found["tolerance"])
    return [head.append(f"; curves apart by at most {apart}, tolerance {tolerance} ({found['note']})")]


def _end(comparison: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    lines: list[RenderableType] = [Text.assemble(("Scope: ", "bold"), comparison["scope"])]
    for row in comparison["published"]:
        speed = numbers.plain(row["tokens_per_s_gpu"])
        told = f"{row['model']} on {row['gpu']}, {row['framework']}, {row['precision']}: {speed} token/s/GPU"
        lines.append(Text(f"Published: {told} ({row['source']})", "dim"))
    legend = "* the primary figure, which alone carries the verdict. "
    legend += f"Values: geometric mean of the runs, 95 % interval below. Method: {comparison['method']}."
    notes = [legend] if comparison["metrics"] else []
    whys = [f"{m['name']}: {m['why']}" for m in comparison["metrics"] if m["verdict"] == "not_comparable"]
    return [*lines, "", *(Text(note, "dim") for note in [*notes, *whys, *comparison["notes"]])]


def _metric_table(known: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _grid(
        ("metric", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("95 % in the run", "right"),
        ("n", "right"),
    )
    for name, metric in known.items():
        n = "" if metric["n"] is None else f"{metric['n']:,}"
        span = numbers.span(name, metric["ci95"])
        shown = numbers.number(name, metric["value"])
        table.add_row(name, shown, numbers.unit(name, metric["unit"]), span, n)
    return table


def _unknown(metrics: Mapping[str, Mapping[str, Any]]) -> list[RenderableType]:
    return _by_note("Not known", {n: {"note": str(m["note"])} for n, m in metrics.items() if m["value"] is None})


def _by_note(head: str, metrics: Mapping[str, Mapping[str, Any]]) -> list[RenderableType]:
    """Names of figures grouped by what is to be said of them: how each was taken, or why it is not known."""
    from rich.text import Text

    notes: dict[str, list[str]] = {}
    for name, metric in metrics.items():
        if metric["note"]:
            notes.setdefault(str(metric["note"]), []).append(name)
    lines = [Text.assemble((", ".join(names), ""), (f": {note}", "dim")) for note, names in notes.items()]
    return ["", Text(head, "bold"), *lines] if lines else []
