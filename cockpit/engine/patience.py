"""A full disk under the runs folder: wait for room and say it once. The training goes on, its bytes wait there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cockpit.engine.observer import Observer
from cockpit.store.errors import DiskFull

_RETRY_S = 1.0
_T = TypeVar("_T")


class Patience:
    """Does again what a full disk refused, until it is done. One episode is one sentence, and one at its end."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self._full = False

    async def write(self, act: Callable[[], _T]) -> _T:
        """The result of `act`, called until it raises no DiskFull."""

        async def once() -> _T:
            return act()

        return await self.until_done(once)

    async def until_done(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """The same for what is awaited."""
        while True:
            try:
                result = await act()
            except DiskFull as full:
                await self._wait(full)
            else:
                self._room_again()
                return result

    async def _wait(self, full: DiskFull) -> None:
        if not self._full and self.observer is not None:
            self._full = True
            self.observer.note(
                "error",
                f"{full.message} The training goes on and its output waits on the server; free some space and this "
                "goes on by itself.",
            )
        await asyncio.sleep(_RETRY_S)

    def _room_again(self) -> None:
        if self._full and self.observer is not None:
            self._full = False
            self.observer.note("info", "There is room again under the runs folder: going on.")
