"""The end of a run and of a group: artifacts home, summary written, comparison made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, Exit
from cockpit.core.events import State
from cockpit.core.state import RunState
from cockpit.engine.apart import Apart
from cockpit.engine.fetch import Left, Source, Wanted, fetch
from cockpit.engine.follower import RunFollower
from cockpit.store.errors import DiskFull

if TYPE_CHECKING:
    from cockpit.store.store import GroupRecord, Store


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """How a group ended; `comparison` is ekvi.compare/1 where there was something to compare."""

    state: str
    exit_code: int
    comparison: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


async def finish_run(follower: RunFollower, sources: Sequence[Source], wanted: Wanted, apart: Apart) -> Left:
    """Fetch what the run made, note its end in run.json and write its summary. May be called again.

    Returns what stays on the servers. Raises DiskFull where there is no room here, ServerLost where a link breaks.
    """
    left = Left()
    wanted = wanted.of_run(follower.dir.meta().get("config") or {})
    for source in sources:
        found = await fetch(follower.dir, source, wanted)
        left.add(found)
        left.sentences += found.sentences
    await apart(close_run, follower.dir.path, follower.state)
    return left


def close_run(path: Path, state: RunState) -> None:
    """Note a run's end in its run.json and write its summary. Raises DiskFull or StoreError."""
    from cockpit.metrics import nodes
    from cockpit.metrics.origin import origin
    from cockpit.metrics.summary import summarise
    from cockpit.store.rundir import RunDir

    run_dir = RunDir(path)
    before = run_dir.meta()
    ended = {**before, "started": state.started_t, "ended": state.ended_t}
    ticks = nodes.read([run_dir.ticks(node) for node in range(run_dir.nodes)], ended)
    meta = run_dir.update_meta(
        state=state.state.value,
        reason=state.reason,
        exit_code=state.exit_code,
        signal=state.signal,
        started=state.started_t,
        ended=state.ended_t,
        provenance={**_provenance(before.get("provenance") or {}, state), **origin(ticks.each, ended)},
    )
    run_dir.write_summary(summarise(meta, run_dir.columns(), ticks, state.diagnostics))


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
    if not any(_trains(run.meta) for side in sides for run in side.runs):
        return None  # data, calibrate and purge have no speed to compare
    return compare(sides)


def _trains(meta: Mapping[str, Any]) -> bool:
    """Whether a run has a stage that trains; of one that was made elsewhere that is taken to be so."""
    stages = (meta.get("plan") or {}).get("stages")
    return stages is None or any(stage.get("stage") == "train" for stage in stages)
