"""`doctor` and `servers test`: what stands in the way, before anything is started."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from cockpit.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from cockpit.engine.doctor import Diagnosis


def doctor(args: argparse.Namespace) -> int:
    """Examine the servers of a profile; exit 3 where a run could not start on one of them."""
    from cockpit.engine.doctor import doctor as examine
    from cockpit.engine.start import Wish
    from cockpit.hosts import connect

    if not args.profile:
        meant = next((w for w in args.overrides if "=" not in w), None)
        hint = f"Say --profile {meant}." if meant else "`ekvi-cockpit profiles list` shows them: --profile NAME."
        raise UsageError("`doctor` needs a profile.", hint=hint)
    names = tuple(n for n in args.servers.split(",") if n) if args.servers is not None else None
    if names == ():
        raise UsageError("--servers names no server.", hint="--servers A,B")
    wish = Wish(args.profile, tuple(args.overrides), names, stage=args.stage)
    return _show(args, asyncio.run(examine(wish, connect)))


def servers_test(args: argparse.Namespace) -> int:
    """Examine server files; exit 3 where one cannot be used."""
    from cockpit.engine.doctor import test_servers
    from cockpit.hosts import connect

    return _show(args, asyncio.run(test_servers(args.names, connect)))


def _show(args: argparse.Namespace, found: Diagnosis) -> int:
    if args.output == "json":
        sys.stdout.write(json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        from cockpit.report.diagnosis import diagnosis_text

        sys.stdout.write(diagnosis_text(found.to_json()))
    return int(Exit.SERVER if found.unfit else Exit.OK)
