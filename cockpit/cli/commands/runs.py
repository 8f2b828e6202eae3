"""`runs`, `show`, `tag` and `rm`: what the store holds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from cockpit.cli.commands.iterations import show_iterations
from cockpit.cli.progress import duration
from cockpit.cli.tables import print_table
from cockpit.core.errors import Exit, UsageError
from cockpit.core.events import State
from cockpit.core.text import size

if TYPE_CHECKING:
    from cockpit.store.store import RunRow, Store

_EMPTY = "no runs yet: `ekvi-cockpit run --profile duel-local` makes some, `ekvi-cockpit replay demo` shows one"

_SPARE = ("created", "size")  # left out of a narrow terminal in this order: an id says when


def _store(args: argparse.Namespace) -> Store:
    from cockpit.store.store import Store, runs_root

    return Store(runs_root(args.runs_dir))


def runs(args: argparse.Namespace) -> int:
    """List runs, or groups."""
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: at least 1.")
    store = _store(args)
    if args.groups:
        return _groups(store, args)
    newest_first = args.sort is None  # so that --limit gives what one looks for
    rows = store.runs(
        args.filter, sort=args.sort or "created", reverse=args.reverse != newest_first, limit=args.limit, sizes=True
    )
    for problem in store.problems:
        sys.stderr.write(f"left out: {problem}\n")
    if args.output == "json":
        sys.stdout.write(json.dumps([r.to_json() for r in rows], indent=2) + "\n")
    else:
        print_table([_row(r) for r in rows], "no run matches" if args.filter else _EMPTY, spare=_SPARE)
        _say_open(rows)
    return int(Exit.OK)


def _say_open(rows: Sequence[RunRow]) -> None:
    """What a listing cannot know: how open runs are by now."""
    from cockpit.store.records import IMPORTED

    if any(not State(r.state).final for r in rows if r.state and r.profile != IMPORTED):
        sys.stderr.write("Open runs are shown as last seen; `fetch ID` looks again, `attach ID` follows.\n")


def _row(run: RunRow) -> dict[str, object]:
    point = "|".join(f"{k}={v}" for k, v in run.sweep.items())
    return {
        "id": run.id,
        "server": f"{run.server}|{point}" if point else run.server,
        "state": run.state,
        "took": duration(run.duration_s),
        "size": size(run.size_by),
        "created": _when(run.created),
        "tags": ",".join(run.tags) or None,
    }


def _when(t: float | None) -> str | None:
    return None if t is None else datetime.fromtimestamp(t).astimezone().strftime("%Y-%m-%d %H:%M")


def _groups(store: Store, args: argparse.Namespace) -> int:
    if args.filter:
        raise UsageError("--groups takes no filter words.", hint="`ekvi-cockpit runs group=ID` lists a group's runs.")
    groups = store.groups()[: args.limit]
    if args.output == "json":
        sys.stdout.write(json.dumps([g.to_json() for g in groups], indent=2) + "\n")
        return int(Exit.OK)
    rows = [
        {
            "id": g.id,
            "profile": g.profile,
            "servers": ",".join(g.servers),
            "runs": len(g.runs),
            "state": g.state or "open",
            "created": _when(g.created),
            "tags": ",".join(g.tags) or None,
        }
        for g in groups
    ]
    print_table(rows, _EMPTY, spare=_SPARE)
    return int(Exit.OK)


def show(args: argparse.Namespace) -> int:
    """A run's summary, or a group and its runs."""
    from cockpit.engine.sides import run_facts
    from cockpit.report import summary_text

    store = _store(args)
    kind, ident = store.resolve(args.id)
    if kind == "group":
        runs_of = store.group(ident).runs
        if len(runs_of) != 1 and args.iterations:
            one = f"Such as {runs_of[0]}." if runs_of else None
            raise UsageError(f"--iterations is of one run; {ident} has {len(runs_of)}.", hint=one)
        if len(runs_of) != 1:
            return _show_group(store, ident, args)
        ident = runs_of[0]
    if args.iterations:
        return show_iterations(store, ident, args.output)
    summary = run_facts(store, ident).summary
    if args.output == "json":
        sys.stdout.write(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(summary_text(summary))
        sys.stdout.write(f"\n{store.run_dir(ident).path}\n")
    return int(Exit.OK)


def _show_group(store: Store, ident: str, args: argparse.Namespace) -> int:
    record = store.group(ident)
    rows = store.runs([f"group={ident}"], sizes=True)
    if args.output == "json":
        document = {**record.to_json(), "runs": [r.to_json() for r in rows]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return int(Exit.OK)
    words = " ".join(record.overrides)
    sys.stdout.write(
        f"group {ident}: {record.state or 'open'}, profile {record.profile}{' ' + words if words else ''}\n\n"
    )
    print_table([_row(r) for r in rows], "its runs were deleted", spare=_SPARE)
    _say_open(rows)
    return int(Exit.OK)


def tag(args: argparse.Namespace) -> int:
    """Add or remove tags and print what the run or group has now."""
    store = _store(args)
    _, ident = store.resolve(args.id)
    now = store.tag(ident, remove=args.tags) if args.remove else store.tag(ident, add=args.tags)
    told = json.dumps({"id": ident, "tags": list(now)}) if args.output == "json" else ",".join(now)
    sys.stdout.write(told + "\n")
    return int(Exit.OK)


def remove(args: argparse.Namespace) -> int:
    """Delete runs and groups, after asking."""
    store = _store(args)
    found = list(dict.fromkeys(store.resolve(word) for word in args.id))
    deleted: list[str] = []
    kept: list[str] = []
    for kind, ident in found:
        what = f"{kind} {ident} ({size(store.size(ident))})"
        if not args.yes and not _agreed(what):
            sys.stderr.write(f"kept {ident}\n")
            kept.append(ident)
            continue
        for run in store.delete(ident):
            deleted.append(run)
            if args.output == "text":
                sys.stdout.write(f"{run}\n")
    if args.output == "json":
        sys.stdout.write(json.dumps({"deleted": deleted, "kept": kept}) + "\n")
    return int(Exit.OK)


def _agreed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"{what} is to be deleted, and there is no terminal to ask at.", hint="Say --yes.")
    sys.stderr.write(f"Delete {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
