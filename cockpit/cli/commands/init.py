"""`init`: a first profile, asked for on a terminal, said in options, or taken from what is there already."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cockpit.core.errors import ConfigError, Exit, UsageError, did_you_mean
from cockpit.core.text import printable

_OPTIONS = "--yes --server A --server B, --from-ssh-config HOST... or --from-env FILE..."


def init(args: argparse.Namespace) -> int:
    """Write server files and a profile; their paths are printed, what is next is said."""
    from cockpit.engine.init import check, write

    if args.from_env and args.from_ssh_config is not None:
        raise UsageError("--from-env and --from-ssh-config exclude each other.")
    note = None
    if args.from_ssh_config is not None:
        wanted = _from_ssh_config(args)
        if wanted is None:
            return int(Exit.OK)
    elif args.from_env:
        wanted, note = _from_env(args)
    elif args.yes:
        wanted = _from_options(args)
    else:
        _need_terminal()
        from cockpit.cli.guide import guide

        wanted = guide(args)
    check(wanted, force=args.force)
    _show(wanted)
    if not (args.yes or args.from_env or args.from_ssh_config) and not _agreed():
        sys.stderr.write("Nothing was written.\n")
        return int(Exit.OK)
    paths = [str(path) for path in write(wanted, force=args.force)]
    if args.output == "json":
        document = {"profile": wanted.profile, "servers": list(wanted.servers), "files": paths}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write("".join(f"{path}\n" for path in paths))
    _say_next(wanted, note)
    return int(Exit.OK)


def _need_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "`init` asks its questions on a terminal, and this is none.", hint=f"In a script: {_OPTIONS}"
        )


def _agreed() -> bool:
    from cockpit.cli.guide import yes

    return yes("Write this?", default=True)


def _show(wanted: Any) -> None:
    for path, text in wanted.files():
        sys.stderr.write(f"\n{path}\n" + "".join(f"  {printable(line)}\n" for line in text.splitlines()))
    sys.stderr.write("\n")


def _say_next(wanted: Any, note: str | None) -> None:
    if note:
        sys.stderr.write(note + "\n")
    if wanted.profile is None:
        names = ",".join(wanted.servers)
        sys.stderr.write(
            f"Next: `ekvi-cockpit servers test`, then `run --profile P --servers {names}` (see `profiles list`).\n"
            "--name P writes a profile for them as well.\n"
        )
        return
    build = f"`build --profile {wanted.profile}`, " if wanted.launcher == "container" and not wanted.image else ""
    sys.stderr.write(
        f"Next: `ekvi-cockpit doctor --profile {wanted.profile}`, then {build}`run --profile {wanted.profile}`.\n"
    )


def _from_options(args: argparse.Namespace) -> Any:
    from cockpit.engine.init import PLAIN, Wanted, name_for

    if not args.server:
        raise UsageError(
            "--yes needs at least one --server.", hint="Add --server USER@HOST, or --server NAME=USER@HOST."
        )
    servers: dict[str, Mapping[str, Any]] = {}
    for word in args.server:
        name, equals, address = word.partition("=")
        name, address = (name, address) if equals else (name_for(word, list(servers)), word)
        if name in servers:
            raise UsageError(f"--server names {name!r} twice.")
        servers[name] = {"address": address}
    launcher = args.launcher or ("process" if all(s["address"] == "local" for s in servers.values()) else "container")
    return Wanted(servers, args.name or "first", args.model or PLAIN, launcher, args.image, args.repeats)


def _from_ssh_config(args: argparse.Namespace) -> Any:
    """Server files for Host entries, which are listed where none is named; None where nothing is to be written."""
    from cockpit.engine.init import PLAIN, Wanted, name_for
    from cockpit.engine.init_sources import ssh_hosts

    path = Path(args.ssh_config).expanduser() if args.ssh_config else None
    known = ssh_hosts(path)
    if not known:
        raise ConfigError(f"{path or '~/.ssh/config'} names no host; patterns such as * do not count.",
                          hint="`ekvi-cockpit init` asks for addresses instead.")  # fmt: skip
    hosts = args.from_ssh_config or (known if args.yes else None)
    if hosts is None:
        listed = "".join(f"{printable(name)}\n" for name in known)
        sys.stdout.write(json.dumps({"hosts": list(known)}) + "\n" if args.output == "json" else listed)
        sys.stderr.write("`ekvi-cockpit init --from-ssh-config HOST...` writes a server file for each one.\n")
        return None
    servers: dict[str, Mapping[str, Any]] = {}
    for host in dict.fromkeys(hosts):
        if host not in known:
            raise ConfigError(f"{path or '~/.ssh/config'} has no Host {host!r}.", hint=did_you_mean(host, known))
        servers[name_for(host, list(servers))] = {
            "address": host, **({"ssh": {"config": str(path.absolute())}} if path else {}),
        }  # fmt: skip
    launcher = args.launcher or "container"
    return Wanted(servers, args.name, args.model or PLAIN, launcher, args.image, args.repeats)


def _from_env(args: argparse.Namespace) -> tuple[Any, str | None]:
    """Two servers and a duel, and a word on the token, whose value goes nowhere."""
    from cockpit.engine.init import Wanted, models
    from cockpit.engine.init_sources import from_env

    paths = [Path(word).expanduser() for word in args.from_env]
    found = from_env(paths)
    if found.unused:
        sys.stderr.write(f"Left out, since nothing here takes them: {', '.join(found.unused)}.\n")
    large = next((m for m in models() if m.startswith("llama")), models()[0])
    wanted = Wanted(
        found.servers,
        args.name or "duel",
        args.model or large,
        args.launcher or "container",
        args.image,
        args.repeats,
    )
    if found.token is None:
        return wanted, None
    return wanted, (
        f"{found.token} was not copied: a profile holds no secrets. Provide it where you start runs: "
        "export HF_TOKEN=..., or `hf auth login`."
    )
