"""Which runs make a side of a comparison: one per server and sweep point of each argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cockpit.core.errors import UsageError, did_you_mean
from cockpit.core.events import Diagnostic, State

if TYPE_CHECKING:
    from cockpit.metrics.sides import RunFacts, Side
    from cockpit.store.store import Store


def sides_of(store: Store, words: Sequence[str]) -> list[Side]:
    """The sides of `RUN|GROUP[:SERVER] ...`, named `server[|k=v]`, prefixed by the group's id where names clash.

    Raises UsageError on an id or server that is not there, and where a run would meet itself.
    """
    from cockpit.metrics.sides import Side, check_sides

    found: list[tuple[str, str, list[str]]] = []  # group, name, run ids
    for word in words:
        found += _word(store, word)
    sides = [
        Side(name, [run_facts(store, r) for r in runs])
        for name, (_, _, runs) in zip(_names(found), found, strict=True)
    ]
    check_sides(sides)
    return sides


def _names(found: Sequence[tuple[str, str, list[str]]]) -> list[str]:
    """Short names where they are enough, else with the group before, else a lone run's own id."""
    short = [name for _, name, _ in found]
    longer = [f"{group}:{name}" if short.count(name) > 1 else name for group, name, _ in found]
    return [
        runs[0] if longer.count(name) > 1 and len(runs) == 1 else name
        for name, (_, _, runs) in zip(longer, found, strict=True)
    ]


def _word(store: Store, word: str) -> list[tuple[str, str, list[str]]]:
    token, _, server = word.partition(":")
    kind, ident = store.resolve(token)
    runs = [ident] if kind == "run" else list(store.group(ident).runs)
    grouped: dict[tuple[str, str], list[str]] = {}
    servers: set[str] = set()
    for run in runs:
        meta = store.run_dir(run).meta()
        servers.add(meta["server"])
        if not server or meta["server"] == server:
            point = "|".join(f"{k}={v}" for k, v in meta["sweep"].items())
            name = f"{meta['server']}|{point}" if point else meta["server"]
            grouped.setdefault((meta["group"], name), []).append(run)
    if not grouped:
        raise UsageError(f"`{word}`: {token} has no server {server!r}.", hint=did_you_mean(server, servers))
    return [(group, name, members) for (group, name), members in grouped.items()]


def run_facts(store: Store, run: str) -> RunFacts:
    """What a comparison needs of one run: its summary (made now where it is missing) and its run.json."""
    from cockpit.metrics.sides import RunFacts
    from cockpit.metrics.summary import summarise

    run_dir = store.run_dir(run)
    meta = run_dir.meta()
    summary = run_dir.summary()
    if summary is None:
        if not State(meta["state"]).ended:
            raise UsageError(
                f"run {run} is {meta['state']}: its figures are known when it has ended.",
                hint=f"`ekvi-cockpit attach {meta['group']}` follows it to its end.",
            )
        diagnostics = [e for e in run_dir.journal_events() if isinstance(e, Diagnostic)]
        others = [run_dir.ticks(node) for node in range(1, run_dir.nodes)]
        summary = summarise(meta, run_dir.columns(), run_dir.ticks(), diagnostics, others=others)
    return RunFacts(run, summary, meta, loss=run_dir.columns())
