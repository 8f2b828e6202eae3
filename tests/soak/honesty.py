"""A/A honesty: `duel-local` sets a machine against itself, so a side that is called better is a false verdict.

`python -m tests.soak.honesty --groups 20 [--write]` runs that many duels one after the other, compares each, prints a
row for each and, with --write, puts the table into docs/benchmarks.md. About two minutes a duel.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_DOC = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- A/A honesty: begin -->", "<!-- A/A honesty: end -->"
_HEAD = "| # | left token/s (n) | right token/s (n) | right against left, 95 % | verdict |\n|---|---|---|---|---|\n"


def _cockpit(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cockpit.cli", *words], capture_output=True, text=True, timeout=1800, check=True
    )
    return done.stdout


def one_duel() -> dict[str, Any]:
    """Run one duel and return its comparison (ekvi.compare/1)."""
    _cockpit("run", "--profile", "duel-local", "--output", "json")
    document: dict[str, Any] = json.loads(_cockpit("compare", "last", "--output", "json"))
    return document


def primary(document: dict[str, Any]) -> dict[str, Any]:
    """The metric that carries the verdict."""
    return next(m for m in document["metrics"] if m.get("primary"))


def row(number: int, document: dict[str, Any]) -> str:
    """One comparison as a line of the table."""
    metric = primary(document)
    sides = [metric["sides"][s["name"]] for s in document["sides"]]
    values = [f"{s['value']:,.0f} ({s['n']})" for s in sides]
    ratio = metric["ratio"]
    low, high = ratio["ci95"]
    shown = f"{(ratio['value'] - 1) * 100:+.2f} % ({(low - 1) * 100:+.2f} to {(high - 1) * 100:+.2f})"
    return f"| {number} | {' | '.join(values)} | {shown} | {metric['verdict']} |\n"


def main() -> int:
    """Run the duels; 1 where more than 15 % of them call a side better."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.honesty", description=__doc__)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows, false = [], 0
    for number in range(1, args.groups + 1):
        document = one_duel()
        rows.append(row(number, document))
        false += primary(document)["verdict"].endswith("_better")
        print(rows[-1], end="", flush=True)
    text = (
        f"{_HEAD}{''.join(rows)}\n{false} of {args.groups} comparisons of this machine with itself call a side "
        f"better (`python -m tests.soak.honesty --groups {args.groups}`).\n"
    )
    print(text.splitlines()[-1])
    if args.write:
        before = _DOC.read_text()
        _DOC.write_text(f"{before.split(_BEGIN)[0]}{_BEGIN}\n{text}{_END}{before.split(_END)[1]}")
    return int(false > 0.15 * args.groups)


if __name__ == "__main__":
    sys.exit(main())
