"""`build` and `shell`: the images that a profile's runs start in, and a look into one."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from cockpit.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cockpit.core.records import GroupPlan
    from cockpit.engine.building import Result


def build(args: argparse.Namespace) -> int:
    """Build the profile's images on its servers; exit 3 where one could not."""
    from cockpit.engine.building import build_all, dry_run
    from cockpit.hosts import connect

    group = asyncio.run(_plan(args, _names(args.servers)))
    if args.dry_run:
        script = dry_run(group)
        document = json.dumps({"type": "dry_run", "profile": args.profile, "script": script}) + "\n"
        sys.stdout.write(document if args.output == "json" else script)
        return int(Exit.OK)
    results = asyncio.run(build_all(group, connect, _tell))
    _print(results, args)
    return int(Exit.SERVER if any(r.error is not None for r in results) else Exit.OK)


def shell(args: argparse.Namespace) -> int:
    """An interactive shell on a server of the profile, as its runs would have it; its exit status."""
    from cockpit.engine.shell import open_shell
    from cockpit.hosts import connect
    from cockpit.hosts.terminal import need_terminal

    need_terminal()
    command = tuple(args.words)
    group = asyncio.run(_plan(args, (args.server,) if args.server else None))
    names = list(group.servers)
    if len(names) != 1:
        raise UsageError(
            f"Profile {args.profile} has {len(names)} servers, and a shell is on one.",
            hint=f"Say --server {' or --server '.join(names)}.",
        )
    return asyncio.run(open_shell(group, names[0], command, connect, say=lambda line: _tell(names[0], line)))


async def _plan(args: argparse.Namespace, servers: tuple[str, ...] | None) -> GroupPlan:
    from cockpit.engine.start import Wish, plan
    from cockpit.hosts import connect

    if not args.profile:
        meant = next((w for w in args.overrides if "=" not in w), None)
        hint = f"Say --profile {meant}." if meant else "`ekvi-cockpit profiles list` shows them: --profile NAME."
        raise UsageError(f"`{args.verb}` needs a profile.", hint=hint)
    return await plan(Wish(args.profile, tuple(args.overrides), servers, repeats=1), connect)


def _names(text: str | None) -> tuple[str, ...] | None:
    names = tuple(n for n in text.split(",") if n) if text is not None else None
    if names == ():
        raise UsageError("--servers names no server.", hint="--servers A,B")
    return names


def _tell(name: str, line: str) -> None:
    sys.stderr.write(f"{name}: {line}\n")
    sys.stderr.flush()


def _print(results: Sequence[Result], args: argparse.Namespace) -> None:
    rows = [
        {
            "server": r.name,
            "image": r.built.tag if r.built else None,
            "image_id": r.built.image_id if r.built else None,
            "digest": r.built.digest if r.built else None,
            "error": str(r.error) if r.error else None,
        }
        for r in results
    ]
    if args.output == "json":
        sys.stdout.write(json.dumps({"profile": args.profile, "servers": rows}, indent=2) + "\n")
        return
    for row in rows:
        if row["error"] is None:
            digest = row["digest"] or "no digest: the engine gives one to images of a registry"
            sys.stdout.write(f"{row['server']}  {row['image']}\n  {row['image_id']}\n  {digest}\n")
        else:
            sys.stderr.write(f"ekvi-cockpit: {row['error']}\n")
