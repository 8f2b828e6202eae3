"""A bound on an await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(seconds: float, work: Awaitable[_T]) -> _T:
    """What `work` gives; TimeoutError after `seconds`, with `work` cancelled.

    Takes the place of `asyncio.wait_for`, which before Python 3.12 loses that its task was cancelled where `work` has
    just ended: whoever cancelled it then waits for ever.
    """
    async with asyncio.timeout(seconds):
        return await work
