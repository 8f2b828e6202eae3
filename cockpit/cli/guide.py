"""The questions of `init` on a terminal. Ctrl-C and the end of input leave at any question, with nothing written."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ConfigError
from cockpit.core.text import printable

if TYPE_CHECKING:
    from cockpit.engine.init import Wanted


def guide(args: argparse.Namespace) -> Wanted:
    """Ask for a first profile; what options say already is not asked."""
    from cockpit.engine.init import PLAIN, Wanted, models

    say("A first profile: which servers train what. Return takes what stands in [ ].")
    profile = args.name or _profile_name(args.force)
    servers = _servers(args)
    local = all(values["address"] == "local" for values in servers.values())
    launcher = args.launcher or choice("Train in a container or as a plain process?", ["container", "process"],
                                       "process" if local else "container")  # fmt: skip
    image = args.image
    if launcher == "container" and image is None:
        image = ask("The container's image (empty: the one that `build` makes)", "") or None
    model = args.model or choice("Model size?", models(), PLAIN)
    repeats = args.repeats or _number("How many runs a server?", 5 if len(servers) > 1 else 1)
    return Wanted(servers, profile, model, launcher, image, repeats)


def say(text: str) -> None:
    """A line of narration."""
    sys.stderr.write(text + "\n")


def ask(question: str, default: str) -> str:
    """An answer, or the default for an empty line. Raises KeyboardInterrupt at the end of the input."""
    sys.stderr.write(f"{question}{f' [{default}]' if default else ''}: ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise KeyboardInterrupt
    return line.strip() or default


def yes(question: str, *, default: bool) -> bool:
    """Yes or no."""
    while True:
        said = ask(f"{question} ({'Y/n' if default else 'y/N'})", "").lower()
        if said in ("", "y", "yes", "n", "no"):
            return said.startswith("y") if said else default


def choice(question: str, known: Sequence[str], default: str) -> str:
    """One of a few words, by its name or its beginning."""
    while True:
        said = ask(f"{question} ({', '.join(known)})", default)
        found = [k for k in known if k == said] or [k for k in known if k.startswith(said)]
        if len(found) == 1:
            return found[0]
        say(f"  {printable(said)!r} is none of them.")


def _number(question: str, default: int) -> int:
    while True:
        said = ask(question, str(default))
        if said.isascii() and said.isdigit() and int(said) > 0:
            return int(said)
        say("  A whole number, at least 1.")


def _profile_name(force: bool) -> str:
    from cockpit.engine.init import taken_profiles

    taken = taken_profiles()
    names = itertools.chain(["first"], (f"first-{number}" for number in itertools.count(2)))
    free = next(name for name in names if name not in taken)
    while True:
        name = ask("Name of the profile", free)
        if name in taken and not force:
            say(f"  There is a profile {name!r} already; take another name, or begin again with --force.")
        elif name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name) and name[0] not in "_-":
            return name
        else:
            say("  Letters, digits, _ and -, beginning with a letter or digit.")


def _servers(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Two servers, or one where the second is left out; each is tried at once."""
    from cockpit.engine.init import name_for, taken_servers

    taken = [] if args.force else sorted(taken_servers())
    servers: dict[str, dict[str, Any]] = {}
    say("A server's address is as for ssh: USER@HOST, or a Host of its")
    say("configuration; local is this machine.")
    for number, default in (("First", "local"), ("Second", "-")):
        more = " (- for none)" if number == "Second" else ""
        while True:
            address = ask(f"{number} server's address{more}", default)
            if address == "-" and servers:
                return servers
            if address == "-":
                say("  One server at least.")
            elif (vendor := _tried(address)) is not None:
                break
        name = ask("  Its name", name_for(address, [*taken, *servers]))
        servers[name] = {"address": address, **({"vendor": vendor} if vendor else {})}
    return servers


def _tried(address: str) -> str | None:
    """Whether a server is taken: its vendor, "" where it is not known, None to ask again."""
    from cockpit.config.write import server_text
    from cockpit.engine.doctor import vendor_of

    try:
        server_text("new", {"address": address})
        say(f"  trying {printable(address)} ...")
        vendor, problem = asyncio.run(vendor_of(address))
    except ConfigError as error:
        say(f"  {printable(str(error))}")
        return None
    if problem is None:
        say(f"  it answers; vendor {vendor}")
        return vendor
    say(f"  {printable(problem.text)}")
    if problem.mend:
        say(f"  → {printable(problem.mend)}")
    return "" if yes("  Go on with it anyway?", default=False) else None
