"""The way to one machine that is followed: broken, tried again for ever, and said once each way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cockpit.core.errors import ServerError
from cockpit.hosts.backoff import Backoff
from cockpit.hosts.base import ServerLost, ServerTimeout

LOST_AFTER_S = 10.0  # a link that is away for less is a flap that no run's state need tell of
_STEADY_S = 30.0  # a link that held for this long begins its pauses anew
AWAY = (ServerLost, ServerTimeout, TimeoutError)


class Link:
    """Does the work on one machine again until it is done, however often the machine goes away meanwhile.

    `tell(level, text)` gets one sentence when it is lost and one when it is back; `lost(reason)` is awaited when it
    has been away for LOST_AFTER_S.
    """

    def __init__(
        self,
        name: str,
        tell: Callable[[str, str], None],
        lost: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._name = name
        self._tell = tell
        self._lost = lost
        self._since: float | None = None  # when it went away (monotonic, s)
        self._back = 0.0
        self._clock: asyncio.Task[None] | None = None
        self._pauses = Backoff()

    @property
    def away(self) -> bool:
        """Whether the machine was lost and has not answered since."""
        return self._since is not None

    async def keep(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await `work()`, again after each loss. Other errors of a server pass, LoginRefused among them."""
        try:
            while True:
                try:
                    return await work()
                except AWAY as error:
                    self._went(error)
                await asyncio.sleep(self._pauses.next())
        finally:
            await self._stop_clock()

    async def here(self) -> None:
        """The machine has answered."""
        await self._stop_clock()
        if self._since is None:
            return
        away_s, self._since, self._back = time.monotonic() - self._since, None, time.monotonic()
        self._tell("info", f"{self._name} is back after {away_s:.0f} s; nothing of it was missed.")

    def _went(self, error: Exception) -> None:
        if self._since is not None:
            return
        self._since = time.monotonic()
        if self._since - self._back > _STEADY_S:
            self._pauses.reset()
        why = error.message if isinstance(error, ServerError) else f"{self._name} did not answer in time."
        self._tell("warning", f"{self._name} is away: {why} What runs there goes on; this tries until it answers.")
        if self._lost is not None:
            self._clock = asyncio.ensure_future(self._lose(self._lost, why))

    async def _lose(self, lost: Callable[[str], Awaitable[None]], why: str) -> None:
        await asyncio.sleep(LOST_AFTER_S)
        await lost(why)

    async def _stop_clock(self) -> None:
        clock, self._clock = self._clock, None
        if clock is None:
            return
        if not clock.done():
            clock.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await clock


async def first_of(main: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """Await `main` beside others that may end by themselves; what one of them raises ends all, and is raised."""
    tasks = [asyncio.ensure_future(c) for c in (main, *others)]
    waiting = set(tasks)
    try:
        while not tasks[0].done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
