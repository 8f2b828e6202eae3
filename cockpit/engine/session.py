"""A group that is followed: put there a moment ago, or attached to after a night; the code is the same.

The agent owns the queue. This session only follows files by offset, starts the agent anew where it was killed,
and finishes each run when all its bytes are home.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, Exit, ServerError
from cockpit.core.events import State, StateChange
from cockpit.core.records import Access
from cockpit.core.state import RunState
from cockpit.engine.apart import Apart
from cockpit.engine.finish import finish_group, finish_run
from cockpit.engine.follower import RunFollower
from cockpit.engine.observer import GroupInfo, Observer, Outcome
from cockpit.engine.patience import Patience
from cockpit.hosts.base import FileTruncated
from cockpit.parse.states import parse_states
from cockpit.store.records import access_of

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.store.store import GroupRecord, Store

_MOST_RESTARTS = 5  # of an agent that says nothing new in between
_SILENCE_S = 4.0  # the agent writes telemetry twice a second while a run lives
_TIDY_RETRY_S = 0.2
_STEP_TIMEOUT_S = 60.0
_BLOCK = 256 * 1024


@dataclass(slots=True)
class _Queue:
    """One queue of the group on its server."""

    key: str
    host: Host
    path: str
    python: str
    runs: list[str]
    cursors: dict[str, int] = field(default_factory=dict)
    heard: float = 0.0  # when the agent last wrote anything (loop time, s)
    unfinished: list[str] = field(default_factory=list)  # ended, but a cockpit was killed before they were home
    restarts: int = 0  # of the agent since it last told a state
    keep: bool = False  # something of it could not be brought home: leave it on the server


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
    ) -> None:
        """`once` reads what is there now and does not wait; `screen` keeps statistics out of this process."""
        self._store = store
        self._group = group
        self._connect = connect
        self._once = once
        self._apart = Apart(process=screen)
        self._detach = asyncio.Event()
        self._followers: dict[str, RunFollower] = {}
        self._queues: list[_Queue] = []
        self._observer: Observer | None = None
        self._stopped_by_user = False
        self._patience = Patience()
        self._wishes: list[str | None] = []

    # -- what a face may ask

    async def stop(self, run: str | None = None) -> None:
        """Stop one run, or all; the agent does it, and the session goes on until it is done."""
        self._stopped_by_user = self._stopped_by_user or run is None
        if not self._queues:
            self._wishes.append(run)
            return
        from cockpit.telemetry import deploy

        for queue in self._queues:
            if (run is None or run in queue.runs) and not self._done(queue):  # one that is done may be gone already
                await asyncio.wait_for(deploy.stop(queue.host, queue.path, run), _STEP_TIMEOUT_S)

    def detach(self) -> None:
        """Let `run` return; the servers go on."""
        self._detach.set()

    def pace(self, speed: float) -> None:
        """A live group goes at its own pace."""

    # -- the session

    async def run(self, observer: Observer) -> Outcome:
        """Follow to the end; see Session."""
        self._observer = self._patience.observer = observer
        states = {r: self._state(r) for r in self._group.runs}
        observer.begin(
            GroupInfo(self._group.id, self._group.profile, self._group.theme, tuple(states.values()), live=True)
        )
        try:
            for run, state in states.items():
                self._followers[run] = RunFollower(self._store.run_dir(run), state, observer, self._patience.write)
                await self._followers[run].recover()
            await self._open_queues()
            async with asyncio.TaskGroup() as tasks:
                for queue in self._queues:
                    tasks.create_task(self._until_detached(self._follow(queue)))
        except ExceptionGroup as group:  # not `except*`: what is raised inside that is put into a group again
            raise _first(group) from None
        finally:
            for follower in self._followers.values():
                follower.close()
        try:
            return await self._end(observer)
        finally:
            self._apart.close()

    async def _until_detached(self, work: Any) -> None:
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

    async def _open_queues(self) -> None:
        """The queues of which something is not home: a run, what a run made, or the group's end was not noted yet."""
        for record in self._group.queues:
            mine = [self._followers[r] for r in record["runs"] if r in self._followers]
            open_ = [f.state.run for f in mine if not f.state.state.ended]
            unfinished = [f.state.run for f in mine if f.state.state.ended and not f.dir.has_summary]
            if open_ or unfinished or (mine and self._group.state is None):
                host = self._connect(access_of(record))
                queue = _Queue(record["key"], host, record["path"], record["python"], open_, unfinished=unfinished)
                self._queues.append(queue)
        for wish in self._wishes:
            await self.stop(wish)

    # -- one queue

    async def _follow(self, queue: _Queue) -> None:
        try:
            there = await asyncio.wait_for(queue.host.read(f"{queue.path}/queue.json", 0, 1), _STEP_TIMEOUT_S)
            for run in queue.unfinished:
                out = f"{queue.path}/runs/{run}/out" if there else None
                await self._patient_finish(self._followers[run], queue, out)
            if not there:
                await self._lost(queue, "its queue is not on the server: it never got there, or was cleaned up")
                return
            for run in queue.runs:
                follower, base = self._followers[run], f"{queue.path}/runs/{run}"
                queue.cursors[f"{base}/states.jsonl"] = 0
                queue.cursors[f"{base}/spool.log"] = follower.dir.stdout_size
                queue.cursors[f"{base}/telemetry.jsonl"] = follower.dir.telemetry_size
            if not self._once:
                await self._keep_agent(queue)
                queue.heard = asyncio.get_running_loop().time()
            await self._read_all(queue)
            if self._done(queue):
                await self._tidy(queue)
        finally:
            await asyncio.wait_for(queue.host.close(), _STEP_TIMEOUT_S)

    async def _read_all(self, queue: _Queue) -> None:
        if self._once:
            for run in queue.runs:
                await self._drain(queue, run)
                await self._maybe_finish(queue, run)
            return
        async with asyncio.TaskGroup() as tasks:
            guard = tasks.create_task(self._guard(queue))
            while not self._done(queue):
                try:
                    await self._read_chunks(queue)
                except FileTruncated as cut:
                    self._let_go(queue, cut)
            guard.cancel()

    async def _read_chunks(self, queue: _Queue) -> None:
        async for chunk in queue.host.follow(queue.cursors):
            run, name = chunk.path.rsplit("/", 2)[1:]
            await self._take(queue, run, name, chunk.offset, chunk.data)
            await self._maybe_finish(queue, run)
            if self._done(queue):
                break

    def _let_go(self, queue: _Queue, cut: FileTruncated) -> None:
        """A file on the server became shorter (a power cut, a hand): keep what is home and go on without the rest."""
        assert self._observer is not None
        if cut.path.endswith("/states.jsonl"):  # read anew: agent_seq tells what is known already
            queue.cursors[cut.path] = 0
            self._followers[cut.path.rsplit("/", 2)[1]].states_anew()
            return
        queue.cursors.pop(cut.path, None)
        queue.keep = True
        self._observer.note("warning", f"{cut.message} What is here is kept; the rest of that file is not followed.")

    async def _take(self, queue: _Queue, run: str, name: str, offset: int, data: bytes) -> None:
        follower = self._followers[run]
        if name != "spool.log":  # the shim writes that one, also without an agent
            queue.heard = asyncio.get_running_loop().time()
        if name == "spool.log":
            await follower.output(offset, data)
        elif name == "telemetry.jsonl":
            await follower.telemetry(offset, data)
        else:
            queue.restarts = 0
            await follower.states(data)

    async def _drain(self, queue: _Queue, run: str) -> None:
        """Read all three files of a run to where they end now."""
        base = f"{queue.path}/runs/{run}"
        for name in ("states.jsonl", "spool.log", "telemetry.jsonl"):
            path = f"{base}/{name}"
            while data := await asyncio.wait_for(
                queue.host.read(path, queue.cursors.get(path, 0), _BLOCK), _STEP_TIMEOUT_S
            ):
                offset = queue.cursors.get(path, 0)
                queue.cursors[path] = offset + len(data)
                await self._take(queue, run, name, offset, data)

    async def _maybe_finish(self, queue: _Queue, run: str) -> None:
        follower = self._followers[run]
        if follower.ending is None or follower.state.state.ended:
            return
        base = f"{queue.path}/runs/{run}"
        for name in ("spool.log", "telemetry.jsonl"):
            path = f"{base}/{name}"
            while (offset := queue.cursors.get(path)) is not None and (
                data := await asyncio.wait_for(queue.host.read(path, offset, _BLOCK), _STEP_TIMEOUT_S)
            ):
                queue.cursors[path] = offset + len(data)
                await self._take(queue, run, name, offset, data)
        for name in ("states.jsonl", "spool.log", "telemetry.jsonl"):
            queue.cursors.pop(f"{base}/{name}", None)
        await follower.finish()
        await self._patient_finish(follower, queue, f"{base}/out")

    async def _patient_finish(self, follower: RunFollower, queue: _Queue, out: str | None) -> None:
        assert self._observer is not None
        left = await self._patience.until_done(lambda: finish_run(follower, queue.host, out, self._apart))
        follower.dir.close()  # a group may have many runs, and a process may not have many files open
        for sentence in left:
            queue.keep = True
            self._observer.note("warning", f"{follower.state.run}: not fetched: {sentence}")

    def _done(self, queue: _Queue) -> bool:
        return all(self._followers[run].state.state.ended for run in queue.runs)

    # -- the agent

    async def _guard(self, queue: _Queue) -> None:
        """Look after the agent, but only when it has been silent: a look costs the server a Python start."""
        while not self._done(queue):
            silent = asyncio.get_running_loop().time() - queue.heard
            if silent < _SILENCE_S:
                await asyncio.sleep(_SILENCE_S - silent)
            else:
                await self._keep_agent(queue)
                queue.heard = asyncio.get_running_loop().time()

    async def _keep_agent(self, queue: _Queue) -> None:
        """Start the agent anew where it was killed; it finds its running process again."""
        from cockpit.telemetry import deploy

        assert self._observer is not None
        if self._done(queue) or await asyncio.wait_for(deploy.alive(queue.host, queue.path), _STEP_TIMEOUT_S):
            return
        if await self._ended_there(queue):  # asked when none lives, so that none can end in between
            return
        await asyncio.wait_for(deploy.start(queue.host, queue.path, queue.python), _STEP_TIMEOUT_S)
        queue.restarts += 1
        if queue.restarts > _MOST_RESTARTS:
            raise ServerError(
                f"The agent of queue {queue.key} on {queue.host.name} ends again and again.",
                hint=f"{queue.path}/agent.log says why; what it started goes on.",
            )
        self._observer.note("warning", f"The agent of queue {queue.key} did not live: started it again.")

    async def _ended_there(self, queue: _Queue) -> bool:
        """Whether every run has ended on the server: then its agent has left because there is nothing left to do."""
        for run in queue.runs:
            path, data = f"{queue.path}/runs/{run}/states.jsonl", b""
            while more := await asyncio.wait_for(queue.host.read(path, len(data), _BLOCK), _STEP_TIMEOUT_S):
                data += more
            if not any(change.state.ended for change in parse_states(data)):
                return False
        return True

    async def _tidy(self, queue: _Queue) -> None:
        """All of it is home: take the queue's folder off the server. A leftover is no reason to fail."""
        from cockpit.telemetry import deploy

        assert self._observer is not None
        if queue.keep:
            self._observer.note("warning", f"{queue.path} stays on {queue.host.name}: not all of it is home.")
            return
        try:
            async with asyncio.timeout(_STEP_TIMEOUT_S):
                # another process lets go: there is no event to wait on
                while await deploy.alive(queue.host, queue.path):  # noqa: ASYNC110
                    await asyncio.sleep(_TIDY_RETRY_S)
                await deploy.clean(queue.host, queue.path)
        except (ServerError, TimeoutError) as error:
            self._observer.note(
                "warning", f"{queue.path} stays on {queue.host.name}: {error or 'its agent still lives'}"
            )

    async def _lost(self, queue: _Queue, reason: str) -> None:
        await self._clear(queue)
        for run in queue.runs:
            follower = self._followers[run]
            await follower.own(StateChange(state=State.LOST, reason=reason))
            await self._patient_finish(follower, queue, None)

    @staticmethod
    async def _clear(queue: _Queue) -> None:
        """Remove what a launch that was killed had put on the server; a leftover is no reason to fail."""
        from cockpit.hosts import layout

        with contextlib.suppress(ServerError):
            async with asyncio.timeout(_STEP_TIMEOUT_S):
                await queue.host.workdir(layout.workdir_of(queue.path))
                await queue.host.remove_tree(queue.path)

    # -- the end

    async def _end(self, observer: Observer) -> Outcome:
        states = {run: f.state for run, f in self._followers.items()}
        if not all(s.state.ended for s in states.values()):
            outcome = Outcome(self._group.id, "DETACHED", int(Exit.OK))
        else:
            end = await self._patience.until_done(lambda: finish_group(self._store, self._group, states, self._apart))
            code = int(Exit.INTERRUPTED) if self._stopped_by_user and end.state != "SUCCEEDED" else end.exit_code
            outcome = Outcome(self._group.id, end.state, code, end.comparison)
            for text in end.notes:
                observer.note("warning", text)
        observer.end(outcome)
        return outcome


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
