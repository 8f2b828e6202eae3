"""The end of a run and of a group: artifacts home, summary written, comparison made."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, Exit, ServerError, StoreError
from cockpit.core.events import State
from cockpit.core.state import RunState
from cockpit.engine.apart import Apart
from cockpit.engine.follower import RunFollower
from cockpit.store.errors import DiskFull

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store

_FETCH_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """How a group ended; `comparison` is ekvi.compare/1 where there was something to compare."""

    state: str
    exit_code: int
    comparison: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


async def finish_run(follower: RunFollower, host: Host | None, out: str | None, apart: Apart) -> list[str]:
    """Fetch what the run made, note its end in run.json and write its summary. May be called again.

    Returns a sentence for each file that stays on the server. Raises DiskFull where there is no room here.
    """
    state, run_dir = follower.state, follower.dir
    left: list[str] = []
    if host is not None and out is not None:
        for entry in await asyncio.wait_for(host.listdir(out), _FETCH_TIMEOUT_S):
            try:
                target = run_dir.artifact(entry.path)
                await asyncio.wait_for(host.get(f"{out}/{entry.path}", target), _FETCH_TIMEOUT_S)
            except StoreError as error:
                if getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(error.message, hint=error.hint) from error
                raise
            except ServerError as error:  # one file that cannot be read must not keep the rest from coming home
                left.append(str(error))
    await apart(close_run, run_dir.path, state)
    return left


def close_run(path: Path, state: RunState) -> None:
    """Note a run's end in its run.json and write its summary. Raises DiskFull or StoreError."""
    from cockpit.metrics.summary import summarise
    from cockpit.store.rundir import RunDir

    run_dir = RunDir(path)
    meta = run_dir.update_meta(
        state=state.state.value,
        reason=state.reason,
        exit_code=state.exit_code,
        signal=state.signal,
        started=state.started_t,
        ended=state.ended_t,
        provenance=_provenance(run_dir.meta().get("provenance") or {}, state),
    )
    run_dir.write_summary(summarise(meta, run_dir.columns(), run_dir.ticks(), state.diagnostics))


def _provenance(before: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """What was known before the start, and what the runner said of itself."""
    found = dict(before)
    for diagnostic in state.diagnostics:
        if diagnostic.code in ("provenance", "model", "data"):
            key = "runner" if diagnostic.code == "provenance" else diagnostic.code
            found[key] = dict(diagnostic.data)
    return found


async def finish_group(store: Store, group: GroupRecord, states: Mapping[str, RunState], apart: Apart) -> GroupEnd:
    """Note the group's end and compare its sides where there are two or more. Raises DiskFull or StoreError."""
    ended = [s.state for s in states.values()]
    name = "SUCCEEDED"
    if any(s.failed for s in ended):
        name = "CANCELLED" if all(s in (State.CANCELLED, State.SUCCEEDED) for s in ended) else "FAILED"
    await asyncio.to_thread(store.update_group, group.id, state=name)
    notes: list[str] = []
    comparison = None
    try:
        comparison = await apart(compare_words, store.root, store.readonly, [group.id])
    except DiskFull:
        raise
    except CockpitError as error:
        notes.append(f"no comparison: {error}")
    return GroupEnd(name, int(Exit.OK if name == "SUCCEEDED" else Exit.RUN_FAILED), comparison, notes)


def compare_words(root: Path, readonly: bool, words: Sequence[str]) -> Mapping[str, Any] | None:
    """The comparison of the sides that `words` name in the store at `root`; None where there is nothing to say."""
    from cockpit.engine.sides import sides_of
    from cockpit.metrics.compare import compare
    from cockpit.store.store import Store

    sides = sides_of(Store(root, readonly=readonly), words)
    if len(sides) < 2 or not any(side.counted for side in sides):
        return None  # nothing succeeded: there is nothing to say of fairness either
    return compare(sides)
