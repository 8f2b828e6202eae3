"""`make bench`: every budget of the design that can be measured here, as a table; `--write` puts it into the docs.

Each module beside this one has `measure() -> list[(name, value, unit, budget, note)]`; it is called `--runs` times,
and the table shows the median with the smallest and the largest value.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import statistics
import sys
from pathlib import Path

Row = tuple[str, float, str, str, str]
_DOC = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_BY_HAND = {"curves", "gpu_engines", "gpu_step", "kernels", "nvml_cost", "telemetry_cost"}  # programs for a real GPU
_BEGIN, _END = "<!-- make bench: begin -->", "<!-- make bench: end -->"


def modules(only: list[str]) -> list[str]:
    """The bench modules to run, in order of their names; SystemExit on an unknown one."""
    import tests.bench

    found = {m.name for m in pkgutil.iter_modules(tests.bench.__path__) if not m.name.startswith("_")}
    names = sorted(found - _BY_HAND)
    unknown = sorted(set(only) - set(names))
    if unknown:
        sys.exit(f"no bench named {', '.join(unknown)}; there are {', '.join(names)}")
    return [n for n in names if not only or n in only]


def collect(names: list[str], runs: int) -> list[tuple[str, list[float], str, str, str]]:
    """Each figure with all its values, in the order in which they came first."""
    found: dict[str, tuple[list[float], str, str, str]] = {}
    for name in names:
        module = importlib.import_module(f"tests.bench.{name}")
        for number in range(runs):
            print(f"{name} {number + 1}/{runs}", file=sys.stderr, flush=True)
            rows: list[Row] = module.measure()
            for what, value, unit, budget, note in rows:
                found.setdefault(what, ([], unit, budget, note))[0].append(value)
    return [(what, *rest) for what, rest in found.items()]


def table(rows: list[tuple[str, list[float], str, str, str]]) -> str:
    """The figures as a markdown table."""
    lines = ["| what | median | min | max | n | unit | budget | note |", "|---|---|---|---|---|---|---|---|"]
    for what, values, unit, budget, note in rows:
        shown = [number(f(values)) for f in (statistics.median, min, max)]
        lines.append(f"| {what} | {' | '.join(shown)} | {len(values)} | {unit} | {budget} | {note} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Three significant digits, thousands with commas; what is below a clock's tick is 0."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    """Measure, print, and write where it was asked for."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", help="modules to run (all)")
    parser.add_argument("--runs", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    args = parser.parse_args()
    text = table(collect(modules(args.only), args.runs))
    where = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    text = f"`make bench`, on {where}:\n\n{text}"
    print(text)
    if args.write:
        before = _DOC.read_text()
        head, tail = before.split(_BEGIN)[0], before.split(_END)[1]
        _DOC.write_text(f"{head}{_BEGIN}\n{text}{_END}{tail}")


if __name__ == "__main__":
    main()
