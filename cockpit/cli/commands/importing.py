"""`import`: logs that were made elsewhere become runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cockpit.core.errors import Exit, UsageError, did_you_mean
from cockpit.core.text import printable


def import_(args: argparse.Namespace) -> int:
    """Make a group of the logs, and print its id and its runs'."""
    from cockpit.engine.imported_log import LOG_FORMATS
    from cockpit.engine.importing import Wanted, bring
    from cockpit.store.store import Store, runs_root

    form = args.format or "auto"
    if form not in ("auto", *LOG_FORMATS):
        hint = did_you_mean(form, LOG_FORMATS) or f"Formats: {', '.join(LOG_FORMATS)}."
        raise UsageError(f"--format {form}: there is no such format.", hint=hint)
    if args.server is not None and not printable(args.server).strip():
        raise UsageError("--server needs a name.")
    wanted = Wanted(Path(args.telemetry) if args.telemetry else None, args.server, args.vendor, form)
    made = bring(Store(runs_root(args.runs_dir)), args.paths, wanted, _say)
    if args.output == "json":
        sys.stdout.write(json.dumps({"id": made.group, "runs": list(made.runs)}) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in (made.group, *(f"  {run}" for run in made.runs))))
    return int(Exit.OK)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
