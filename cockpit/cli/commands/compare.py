"""`ekvi-cockpit compare`: sides, and what may be concluded."""

from __future__ import annotations

import argparse
import re
import sys

from cockpit.core.errors import ComparisonRefused, Exit, UsageError

_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*$")


def within(text: str) -> float:
    """`1%` or `0.01` as a share; raises UsageError elsewhere and outside 0..50 %."""
    found = _SHARE.match(text)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 < share <= 0.5:
        raise UsageError(f"--within {text}: a share above 0 and up to 50 %.", hint="--within 1% or --within 0.01")
    return share


def compare(args: argparse.Namespace) -> int:
    """Print a comparison; under --strict an unfair one is refused."""
    from cockpit import report
    from cockpit.engine.sides import sides_of
    from cockpit.metrics import compare as metrics
    from cockpit.store.store import Store, runs_root

    share = within(args.within)
    sides = sides_of(Store(runs_root(args.runs_dir)), args.sides)
    found = metrics.compare(sides, share, strict=args.strict)
    if args.output == "json":
        sys.stdout.write(report.as_json(found))
    else:
        sys.stdout.write(report.markdown(found) if args.output == "md" else report.text(found))
    if found["parity"]["verdict"] == "refused":
        keys = [d["key"] for d in found["parity"]["differences"] if d["severity"] == "blocking"]
        raise ComparisonRefused(
            f"refused under --strict: the sides differ in {', '.join(keys)}.",
            hint="Without --strict the comparison is labelled instead.",
        )
    return int(Exit.OK)
