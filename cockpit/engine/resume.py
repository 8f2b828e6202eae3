"""Running again only what failed or is missing in a group, as it was planned."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from cockpit.core.errors import UsageError
from cockpit.core.events import State
from cockpit.core.records import GroupPlan, QueuePlan, RunPlan
from cockpit.engine.admit import Connect, Say, check
from cockpit.engine.putting import launch

if TYPE_CHECKING:
    from cockpit.store.store import GroupRecord, Store

_TRY = re.compile(r"\.try(\d+)$")


async def resume(
    store: Store, group: str, connect: Connect, *, say: Say = lambda _: None
) -> tuple[GroupRecord, list[str]]:
    """Launch new runs in place of those that did not succeed; the record, and the ids of the new runs.

    The old runs stay in the store, out of the group. Raises UsageError while the group still runs, StoreError where
    it cannot be read. The caller holds the group's lock.
    """
    record = await asyncio.to_thread(store.group, group)
    states = {run: State(store.run_dir(run).meta()["state"]) for run in record.runs}
    open_ = [run for run, state in states.items() if not state.ended]
    if open_:
        raise UsageError(
            f"group {group} has not ended: {len(open_)} of {len(states)} runs are open.",
            hint=f"`ekvi-cockpit attach {group}` follows them; `stop` ends them.",
        )
    again = [run for run, state in states.items() if state is not State.SUCCEEDED]
    if not again:
        return record, []
    plan = again_plan(await asyncio.to_thread(store.plan, group), again)
    checked = await check(plan, connect, say=say)
    replaced = {
        next_try_of: run.run for run in plan.runs for next_try_of in again if next_try(next_try_of) == run.run
    }
    return await launch(checked, store, connect, replaced=replaced), list(replaced.values())


def again_plan(whole: GroupPlan, again: Collection[str]) -> GroupPlan:
    """The plan of the runs in `again`, with new ids, in the order of their turns."""
    queues = [_again_queue(q, tuple(r for r in q.runs if r.run in again)) for q in whole.queues]
    return dataclasses.replace(whole, queues=tuple(q for q in queues if q.runs))


def _again_queue(queue: QueuePlan, runs: tuple[RunPlan, ...]) -> QueuePlan:
    renamed = tuple(dataclasses.replace(r, run=next_try(r.run)) for r in runs)
    return dataclasses.replace(queue, key=next_try(queue.key), runs=renamed)


def next_try(name: str) -> str:
    """`x` -> `x.try2` -> `x.try3`."""
    found = _TRY.search(name)
    return f"{name[: found.start()]}.try{int(found[1]) + 1}" if found else f"{name}.try2"
