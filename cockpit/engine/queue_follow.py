"""One queue of a group on its machine, or on the nodes that train together: followed, kept alive, brought home.

Node 0 leads: its states are the runs' states. Every node's output and telemetry are followed on a link of their own,
so that a node that is away keeps nobody from seeing what the others say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import Exit, ServerError
from cockpit.core.events import Diagnostic, State, StateChange
from cockpit.core.records import Access
from cockpit.core.text import size
from cockpit.core.within import within
from cockpit.engine.queue_home import Room, WayHome
from cockpit.engine.queue_node import (
    BLOCK,
    STATES_BY,
    STEP_TIMEOUT_S,
    Node,
    endless,
    keep_agent,
    nodes_of,
    spool_size,
    step,
    take,
    whole,
)
from cockpit.engine.queue_ticks import NodeTicks
from cockpit.engine.reconnect import AWAY, Link, first_of
from cockpit.hosts.backoff import Backoff
from cockpit.hosts.base import FileTruncated, LoginRefused

if TYPE_CHECKING:
    from cockpit.engine.follower import RunFollower
    from cockpit.hosts.base import Host

_SILENCE_S = 4.0  # the agent writes telemetry twice a second while a run lives
_NODE_WAIT_S = 30.0  # how long a run's end waits for a node that is away


class QueueFollow:
    """Follows one queue; `exit_code` says what became of it when `follow` has returned."""

    def __init__(
        self,
        record: Mapping[str, Any],
        followers: Mapping[str, RunFollower],
        connect: Callable[[Access], Host],
        room: Room,
    ) -> None:
        """`record` is the queue in its group's file, `followers` those of its runs that are not home."""
        self._key: str = record["key"]
        self._room = room
        self._followers = followers
        self.exit_code = Exit.OK
        self._for_good: set[str] = set()  # LOST, and nobody has more to say of them
        self._unfinished = [r for r, f in followers.items() if f.state.state.final and not f.dir.has_summary]
        self._runs = [r for r, f in followers.items() if not f.state.state.final]
        self._wishes: list[str | None] = []
        self._nodes = [self._node(i, r, connect) for i, r in enumerate(nodes_of(record))]
        self._ticks = [NodeTicks(n, followers, room.limits.log_by, self._too_much) for n in self._nodes]
        self._home = WayHome(followers, self._nodes, room)

    def _node(self, index: int, record: Mapping[str, Any], connect: Callable[[Access], Host]) -> Node:
        host = connect(Access.from_json(record["access"]))
        link = Link(host.name, self._room.observer.note, self._lost if index == 0 else None)
        return Node(index, host, record["path"], record["python"], link)

    def done(self) -> bool:
        """Whether every run has ended and is home, for all that can be known."""
        return not self._unfinished and all(self._settled(run) for run in self._runs)

    def _settled(self, run: str) -> bool:
        return run in self._for_good or self._followers[run].state.state.final

    async def follow(self) -> None:
        """Follow to the end, through every loss of the link; a server's error ends this queue's following alone."""
        try:
            if self._room.once:
                await self._look_once()
            elif self.done():
                await self._look_back()
            else:
                lead = self._nodes[0].link.keep(self._lead)
                await first_of(lead, *(self._side(node) for node in self._nodes[1:]))
        except (ServerError, TimeoutError) as error:
            await self._trouble(error)
        finally:
            for node in self._nodes:
                with contextlib.suppress(ServerError, TimeoutError):
                    await within(STEP_TIMEOUT_S, node.host.close())

    async def _trouble(self, error: ServerError | TimeoutError) -> None:
        self.exit_code = Exit.SERVER
        said = str(error) or f"{self._nodes[0].host.name} did not answer in time."
        self._room.observer.note("error", said)
        if isinstance(error, LoginRefused) and not self._room.once:
            await self._lost(error.message)

    async def _look_back(self) -> None:
        """All is home, but the cockpit that brought it may have left the queue on the server."""
        try:
            await self._lead()
        except (ServerError, TimeoutError) as error:
            self._room.observer.note("warning", f"What is home may still lie on {self._nodes[0].host.name}: {error}")

    # -- wishes

    async def stop(self, run: str | None) -> None:
        """Put the wish to stop on the servers; on one that is away when it is back."""
        if (run is not None and run not in self._runs) or self.done():
            return
        self._wishes.append(run)
        for node in self._nodes:
            if node.out:
                continue
            try:
                if node.link.away:
                    raise TimeoutError
                await self._put_wishes(node)
            except AWAY:
                self._room.observer.note(
                    "warning", f"{node.host.name} is away: the wish to stop reaches it when it is back."
                )
            except ServerError as error:
                self._room.observer.note("error", str(error))

    async def _put_wishes(self, node: Node) -> None:
        from cockpit.telemetry import deploy

        for run in self._wishes:
            if not self.done():
                await step(deploy.stop(node.host, node.path, run))

    # -- one machine

    async def _lead(self) -> None:
        """Follow node 0 until all is done; raises ServerLost, and is then called again."""
        node = self._nodes[0]
        there = await self._answer(node)
        await self._finish_old(there)
        if not there:
            await self._never_there()
            return
        if not self.done():
            await self._found(node)
            await self._go(node)
        if self.done():
            await self._home.tidy()

    async def _side(self, node: Node) -> None:
        """Follow another node; what goes wrong there is said, and the leader knows what it means for the runs."""

        async def work() -> None:
            if await self._answer(node):
                await self._go(node)
            else:
                node.out = True
                said = f"{node.path} is not on {node.host.name}: its log is not followed."
                self._room.observer.note("warning", said)

        try:
            await node.link.keep(work)
        except ServerError as error:
            node.out = True
            self._room.observer.note("error", str(error))

    async def _answer(self, node: Node) -> bool:
        """Whether the queue is on the machine, which has answered by then."""
        there = bool(await step(node.host.read(f"{node.path}/queue.json", 0, 1)))
        await node.link.here()
        return there

    async def _go(self, node: Node) -> None:
        await self._set_cursors(node)
        await self._put_wishes(node)
        await self._look_after(node)
        node.heard = asyncio.get_running_loop().time()
        clock = self._room.clocks.keep(node, self._room.observer.note)
        await first_of(self._read(node), self._guard(node), clock)

    def _open(self) -> list[str]:
        return [run for run in self._runs if not self._settled(run)]

    async def _set_cursors(self, node: Node) -> None:
        """Where a mirror ends reading goes on; states and telemetry are read anew and known by their numbers."""
        node.cursors.clear()
        for run in self._open():
            follower, base = self._followers[run], f"{node.path}/runs/{run}"
            if node.index == 0:
                follower.states_anew()
                node.cursors[f"{base}/states.jsonl"] = 0
            node.cursors[f"{base}/spool.log"] = spool_size(follower, node.index)
        for path in node.gone:
            node.cursors.pop(path, None)
        await self._ticks[node.index].find(self._open())

    async def _found(self, node: Node) -> None:
        """Runs that were LOST take what the server says of them."""
        for run in self._runs:
            follower = self._followers[run]
            if follower.state.state is State.LOST and not self._settled(run):
                await follower.found(await whole(node.host, f"{node.path}/runs/{run}/states.jsonl"), self._key)

    async def _read(self, node: Node) -> None:
        while not self.done():
            try:
                async with contextlib.aclosing(node.host.follow(node.cursors)) as chunks:
                    async for chunk in chunks:
                        run, name = chunk.path.rsplit("/", 2)[1:]
                        await self._take(node, run, name, chunk.offset, chunk.data)
                        await self._maybe_finish(run)
                        if self.done():
                            return
            except FileTruncated as cut:
                self._let_go(node, cut)

    def _let_go(self, node: Node, cut: FileTruncated) -> None:
        """A file on the server became shorter (a power cut, a hand): keep what is home and go on without the rest."""
        if cut.path.endswith("/states.jsonl"):  # read anew: agent_seq tells what is known already
            node.cursors[cut.path] = 0
            self._followers[cut.path.rsplit("/", 2)[1]].states_anew()
            return
        if self._ticks[node.index].anew(cut.path):  # thinned
            return
        node.cursors.pop(cut.path, None)
        node.gone.add(cut.path)
        self._home.keep = True
        self._room.observer.note(
            "warning", f"{cut.message} What is here is kept; the rest of that file is not followed."
        )

    async def _take(self, node: Node, run: str, name: str, offset: int, data: bytes) -> None:
        follower = self._followers.get(run)
        if follower is None or self._settled(run):
            return
        if name != "spool.log":  # the shim writes that one, also without an agent
            node.heard = asyncio.get_running_loop().time()
        if name.startswith("telemetry."):
            await self._ticks[node.index].take(run, f"{node.path}/runs/{run}/{name}", offset, data)
            return
        async with node.lock:  # a run's end reads a node's files too
            if name == "states.jsonl":
                if offset + len(data) > STATES_BY:
                    raise endless(node.host, f"{node.path}/runs/{run}/{name}")
                node.restarts = 0
                await follower.states(data)
                return
            most = self._room.limits.log_by - offset
            if len(data) > most:
                await self._too_much(node, run, name)
            if most > 0:
                await take(follower.output, offset, data[:most], node.index)

    async def _too_much(self, node: Node, run: str, name: str) -> None:
        """The bound of what a server may send is reached: nothing more of this file is taken."""
        path = f"{node.path}/runs/{run}/{name}"
        node.cursors.pop(path, None)
        if path in node.gone:
            return
        node.gone.add(path)
        self._home.keep = True
        what = "output" if name == "spool.log" else "telemetry"
        said = f"{run}: more than {size(self._room.limits.log_by)} of {what}: no more of it is taken (limits.log_by)."
        self._room.observer.note("warning", f"{said} The run goes on, and the rest stays on the server.")
        data = {"log_by": self._room.limits.log_by, "file": name, "node": node.index}
        follower = self._followers[run]
        if not any(d.code == "log_limit" and d.data == data for d in follower.state.diagnostics):
            await follower.own(Diagnostic(level="info", code="log_limit", message=said, data=data))

    # -- a run's end

    async def _maybe_finish(self, run: str) -> None:
        follower = self._followers.get(run)
        if follower is None or follower.ending is None or self._settled(run):
            return
        await self._drain(self._nodes[0], run)
        for node in self._nodes[1:]:
            await self._drain_side(node, run)
        for node in self._nodes:
            for name in ("states.jsonl", "spool.log"):
                node.cursors.pop(f"{node.path}/runs/{run}/{name}", None)
            self._ticks[node.index].drop(run)
        self._unfinished.append(run)  # also where the link breaks on the way
        await follower.finish()
        await self._home.fetch(run)
        self._unfinished.remove(run)

    async def _drain(self, node: Node, run: str, *, states: bool = False) -> None:
        """Read a run's files to where they end now."""
        base = f"{node.path}/runs/{run}"
        for name in (*(("states.jsonl",) if states else ()), "spool.log"):
            path = f"{base}/{name}"
            while (offset := node.cursors.get(path)) is not None and (
                data := await step(node.host.read(path, offset, BLOCK))
            ):
                node.cursors[path] = offset + len(data)
                await self._take(node, run, name, offset, data)
        await self._ticks[node.index].drain(run)

    async def _drain_side(self, node: Node, run: str) -> None:
        pauses = Backoff()
        try:
            async with asyncio.timeout(_NODE_WAIT_S):
                while not node.out:
                    with contextlib.suppress(*AWAY):
                        if not node.link.away:
                            await self._drain(node, run)
                            return
                    await asyncio.sleep(pauses.next())
        except TimeoutError:
            pass
        self._home.keep = True
        self._room.observer.note("warning", f"{run}: the last words of {node.host.name} are missing: it is away.")

    async def _finish_old(self, there: bool) -> None:
        """Runs whose end was told when a cockpit was killed before they were home."""
        while self._unfinished:
            await self._home.fetch(self._unfinished[0], there)
            self._unfinished.pop(0)

    # -- the agent

    async def _guard(self, node: Node) -> None:
        """Look after the agent, but only when it has been silent: a look costs the server a Python start."""
        while not self.done():
            silent = asyncio.get_running_loop().time() - node.heard
            if silent < _SILENCE_S:
                await asyncio.sleep(_SILENCE_S - silent)
            else:
                await self._look_after(node)
                await self._ticks[node.index].seek(self._open())
                node.heard = asyncio.get_running_loop().time()

    async def _look_after(self, node: Node) -> None:
        if not self.done():
            await keep_agent(node, self._key, self._runs, self._room.observer.note)

    # -- what is lost, and the end

    async def _lost(self, reason: str) -> None:
        for run in self._runs:
            if not self._followers[run].state.state.ended:
                await self._followers[run].own(StateChange(state=State.LOST, reason=reason))

    async def _never_there(self) -> None:
        """The machine has no such queue: what was planned for it is LOST for good."""
        from cockpit.hosts import layout

        node = self._nodes[0]
        with contextlib.suppress(ServerError, TimeoutError):  # of a launch that was killed; no reason to fail
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await node.host.workdir(layout.workdir_of(node.path))
                await node.host.remove_tree(node.path)
        reason = "its queue is not on the server: it never got there, or was cleaned up"
        for run in self._runs:
            if not self._settled(run):
                await self._followers[run].own(StateChange(state=State.LOST, reason=reason))
                self._for_good.add(run)
                await self._home.fetch(run, there=False)

    async def _look_once(self) -> None:
        """Read what is there now, and wait for nothing."""
        there = await self._answer(self._nodes[0])
        await self._finish_old(there)
        if not there:
            await self._never_there()
            return
        await self._found(self._nodes[0])
        for node in self._nodes:
            await self._set_cursors(node)
            for run in self._runs:
                await self._drain(node, run, states=node.index == 0)
        for run in self._runs:
            await self._maybe_finish(run)
        if self.done():
            await self._home.tidy()
