"""`show RUN --iterations`: what the GPUs did while each line of a run's log was trained."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.cli.tables import print_table
from cockpit.core.errors import Exit

if TYPE_CHECKING:
    from cockpit.store.store import Store

_AT_ONCE = 2000  # rows of a table; the next ones have a head of their own
_SPARE = ("ticks", "steps", "loss", "clk_mhz")


def show_iterations(store: Store, run: str, output: str) -> int:
    """Print a run's iterations with its telemetry joined to them; a live run's as far as they are here."""
    from cockpit.metrics import nodes
    from cockpit.metrics.joined import document, join

    run_dir = store.run_dir(run)
    meta = run_dir.meta()
    ticks = nodes.read([run_dir.ticks(node) for node in range(run_dir.nodes)], meta)
    joined = join(run_dir.columns(), ticks)
    if output == "json":
        _print_json(document(meta, joined), joined.rows())
        return int(Exit.OK)
    rows = map(_row, joined.rows())
    first = True
    while some := list(itertools.islice(rows, _AT_ONCE)):
        if not first:
            sys.stdout.write("\n")
        print_table(some, "", spare=_SPARE)
        first = False
    if first:
        sys.stderr.write(f"{run} has no iterations yet\n")
    elif not any(len(one) for one in ticks.each):
        sys.stderr.write("without telemetry: none was taken, or it is not here yet\n")
    return int(Exit.OK)


def _print_json(head: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """One document, written row by row: a run may have a million of them."""
    begun = json.dumps(head, allow_nan=False)[:-1]
    sys.stdout.write(f'{begun}, "iterations": [')
    between = "\n"
    for row in rows:
        sys.stdout.write(between + json.dumps(row, allow_nan=False))
        between = ",\n"
    sys.stdout.write("\n]}\n")


def _row(row: Mapping[str, Any]) -> dict[str, object]:
    """One line of the table."""
    low, high = row["clk_min_mhz"], row["clk_max_mhz"]
    clock = None if low is None or high is None else f"{low:.0f}" if low == high else f"{low:.0f}-{high:.0f}"
    return {
        "step": row["step"],
        "steps": row["steps"] if row["steps"] != 1 else None,
        "loss": _digits(row["loss"], 5),
        "step_s": _digits(row["step_s"], 4),
        "power_w": _digits(row["power_w"], 4),
        "energy_j": _digits(row["energy_j"], 4),
        "temp_c": None if row["temp_c"] is None else f"{row['temp_c']:.0f}",
        "sensor": row["sensor"],
        "clk_mhz": clock,
        "throttle": None if row["throttle"] is None else ",".join(row["throttle"]) or "none",
        "ticks": row["samples"],
    }


def _digits(value: float | None, digits: int) -> str | None:
    """A number of so many digits that carry something, without an exponent where one can read it so."""
    if value is None:
        return None
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
