"""`profiles` and `servers`: what can be run, and where."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from cockpit.cli.tables import print_table
from cockpit.core.errors import Exit


def profiles_list(args: argparse.Namespace) -> int:
    """The profiles that can be run, or what a group of keys has to choose from; the user's own first."""
    from cockpit.config import find_profiles

    rows = [
        {
            "name": p.name,
            "description": p.description,
            "where": "yours" if p.user else "shipped",
            "problem": p.problem,
        }
        for p in find_profiles(args.group or "")
    ]
    return _rows(args, rows, "no profiles: this installation is not whole")


def profiles_show(args: argparse.Namespace) -> int:
    """A profile as composed, for each server, as YAML or JSON."""
    from cockpit.config import show

    document = show(args.profile[0], args.overrides)
    if args.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return int(Exit.OK)


def profiles_validate(args: argparse.Namespace) -> int:
    """Check the named profiles, or all of them; each error is one sentence, exit 2 where there is any."""
    from cockpit.config import find_profiles, validate_all

    names = args.profile or [p.name for p in find_profiles()]
    found = {name: [str(error) for error in validate_all(name, args.overrides)] for name in names}
    if args.output == "json":
        rows = [{"name": name, "valid": not errors, "errors": errors} for name, errors in found.items()]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        for name, errors in found.items():
            sys.stdout.write("\n".join(f"{name}: {line}" for line in errors or ["valid"]) + "\n")
    return int(Exit.USAGE if any(found.values()) else Exit.OK)


def servers_list(args: argparse.Namespace) -> int:
    """The server files that profiles and --servers can name."""
    from cockpit.config import find_servers

    rows = [
        {
            "name": s.name,
            "address": s.address,
            "nodes": list(s.nodes) or None,
            "transport": s.transport,
            "vendor": s.vendor,
            "where": "yours" if s.user else "shipped",
            "problem": s.problem,
        }
        for s in find_servers()
    ]
    return _rows(args, rows, "no servers yet: `ekvi-cockpit servers add NAME address=USER@HOST` writes one")


def servers_add(args: argparse.Namespace) -> int:
    """Write a server file into the user's profiles and say where it is."""
    from cockpit.config import find_servers, write_server

    path = write_server(args.name, args.values, overwrite=args.force)
    if args.output == "json":
        sys.stdout.write(json.dumps({"name": args.name, "path": str(path)}) + "\n")
        return int(Exit.OK)
    sys.stdout.write(f"{path}\n")
    if any(s.name == args.name and s.transport == "local" for s in find_servers()):
        sys.stderr.write(f"Use it: `ekvi-cockpit run --profile duel-local --servers {args.name}`\n")
    else:
        sys.stderr.write(
            f"Try it: `ekvi-cockpit servers test {args.name}`. "
            f"Use it: `ekvi-cockpit run --profile P --servers {args.name}`\n"
        )
    return int(Exit.OK)


def _rows(args: argparse.Namespace, rows: Sequence[Mapping[str, object]], empty: str) -> int:
    if args.output == "json":
        sys.stdout.write(json.dumps([dict(r) for r in rows], indent=2) + "\n")
    else:
        print_table(rows, empty, folded=("description", "problem"))
    return int(Exit.OK)
