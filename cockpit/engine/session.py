"""A group that is followed: put there a moment ago, or attached to after a night; the code is the same.

The agents own the queues. This session only follows files by offset, each queue by itself, so that a server that is
away, or says rubbish, keeps nobody from seeing the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, Exit, ServerError
from cockpit.core.events import State
from cockpit.core.records import Access, Limits
from cockpit.core.state import RunState
from cockpit.engine.apart import Apart
from cockpit.engine.fetch import Wanted
from cockpit.engine.finish import finish_group
from cockpit.engine.follower import RunFollower
from cockpit.engine.observer import GroupInfo, Observer, Outcome
from cockpit.engine.patience import Patience
from cockpit.engine.queue_follow import QueueFollow
from cockpit.engine.queue_home import Room

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store


class LiveSession:
    """Follows a group of the store; `connect` opens the way to a server's address."""

    def __init__(
        self,
        store: Store,
        group: GroupRecord,
        connect: Callable[[Access], Host],
        *,
        once: bool = False,
        screen: bool = False,
        wanted: Wanted | None = None,
    ) -> None:
        """`once` reads what is there now and does not wait; `screen` keeps statistics out of this process.

        `wanted` says which files come home, None what the group's profile says.
        """
        self._store = store
        self._group = group
        self._connect = connect
        self._once = once
        self._limits = Limits(**group.limits)
        self._wanted = wanted or Wanted(tuple(group.fetch), self._limits.fetch_by, self._limits.fetch_files)
        self._apart = Apart(process=screen)
        self._detach = asyncio.Event()
        self._followers: dict[str, RunFollower] = {}
        self._queues: list[QueueFollow] | None = None
        self._stopped_by_user = False
        self._patience = Patience()
        self._wishes: list[str | None] = []

    # -- what a face may ask

    async def stop(self, run: str | None = None) -> None:
        """Stop one run, or all; the agents do it, one that is away when it is back. The session goes on meanwhile."""
        self._stopped_by_user = self._stopped_by_user or run is None
        if self._queues is None:
            self.wish(run)
            return
        await asyncio.gather(*(queue.stop(run) for queue in self._queues))

    def wish(self, run: str | None = None) -> None:
        """Before the session runs: put somebody's wish to stop on the servers as soon as they answer."""
        self._wishes.append(run)

    def detach(self) -> None:
        """Let `run` return; the servers go on."""
        self._detach.set()

    def pace(self, speed: float) -> None:
        """A live group goes at its own pace."""

    # -- the session

    async def run(self, observer: Observer) -> Outcome:
        """Follow to the end; see Session. An error of one server is told, and the others are followed on."""
        self._patience.observer = observer
        states = {r: self._state(r) for r in self._group.runs}
        observer.begin(
            GroupInfo(self._group.id, self._group.profile, self._group.theme, tuple(states.values()), live=True)
        )
        try:
            for run, state in states.items():
                self._followers[run] = RunFollower(self._store.run_dir(run), state, observer, self._patience.write)
                await self._followers[run].recover()
            self._queues = self._open_queues(observer)
            async with asyncio.TaskGroup() as tasks:
                for queue in self._queues:
                    tasks.create_task(self._until_detached(queue.follow()))
                for wish in self._wishes:
                    tasks.create_task(self.stop(wish))
        except ExceptionGroup as group:  # not `except*`: what is raised inside that is put into a group again
            raise _first(group) from None
        finally:
            for follower in self._followers.values():
                follower.close()
        try:
            return await self._end(observer)
        finally:
            self._apart.close()

    async def _until_detached(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        leave = asyncio.ensure_future(self._detach.wait())
        try:
            await asyncio.wait({task, leave}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leave.cancel()
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _state(self, run: str) -> RunState:
        meta = self._store.run_dir(run).meta()
        return RunState(
            run=run,
            group=self._group.id,
            server=meta["server"],
            vendor=meta["vendor"],
            queue=meta["handle"]["queue"],
            slots=next((q["slots"] for q in self._group.queues if run in q["runs"]), 1),
            repeat=meta["repeat"],
            sweep=dict(meta["sweep"]),
            total=meta["total"],
        )

    def _open_queues(self, observer: Observer) -> list[QueueFollow]:
        """The queues of which something is not home: a run, what a run made, or the group's end was not noted yet.

        A run that is LOST and has no summary was lost with the link to its server, which may be back by now.
        """
        room = Room(
            observer, self._patience, self._apart, self._wanted, self._limits, self._group.id, self._once
        )  # fmt: skip
        opened = []
        for record in self._group.queues:
            mine = {r: self._followers[r] for r in record["runs"] if r in self._followers}
            waits = any(not f.dir.has_summary or not f.state.state.ended for f in mine.values())
            if "path" in record and mine and (waits or self._group.state is None):
                opened.append(QueueFollow(record, mine, self._connect, room))
        return opened

    # -- the end

    async def _end(self, observer: Observer) -> Outcome:
        queues = self._queues or []
        code = max((q.exit_code for q in queues), default=Exit.OK)
        if any(q.get("refused") for q in self._group.queues):
            code = max(code, Exit.SERVER)
        states = {run: f.state for run, f in self._followers.items()}
        if self._goes_on(queues):
            outcome = Outcome(self._group.id, "DETACHED", int(code))
        else:
            end = await self._patience.until_done(lambda: finish_group(self._store, self._group, states, self._apart))
            ended = int(max(code, Exit(end.exit_code)))
            if self._stopped_by_user and end.state != "SUCCEEDED":
                ended = int(Exit.INTERRUPTED)
            outcome = Outcome(self._group.id, end.state, ended, end.comparison)
            for text in end.notes:
                observer.note("warning", text)
        observer.end(outcome)
        return outcome

    def _goes_on(self, queues: list[QueueFollow]) -> bool:
        """Whether a run is left on its server: open, or out of sight because the session left before it was back."""
        if any(not f.state.state.ended for f in self._followers.values()):
            return True
        lost = any(f.state.state is State.LOST for f in self._followers.values())
        return lost and any(not q.done() and q.exit_code is Exit.OK for q in queues)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The error that a user is to see: the first of ours, else a server that was too slow, else the first of all."""
    found: list[Exception] = []
    waiting: list[Exception] = [group]
    while waiting:
        error = waiting.pop(0)
        if isinstance(error, ExceptionGroup):
            waiting += error.exceptions
        else:
            found.append(error)
    for error in found:
        if isinstance(error, CockpitError):
            return error
    if isinstance(found[0], TimeoutError):
        return ServerError(
            "A server did not answer in time.", hint="`ekvi-cockpit attach last` follows the group again."
        )
    return found[0]
