"""A bound on an await that loses neither a result nor a cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import cockpit
from cockpit.core.within import within


async def test_a_cancellation_that_comes_as_the_work_ends_is_not_lost() -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    went_on = asyncio.Event()

    async def follow() -> None:
        await within(5.0, ended)
        went_on.set()

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    ended.set_result("done")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on.is_set()


async def test_what_takes_too_long_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        await within(0.01, forever())
    assert cancelled.is_set()
    assert await within(1.0, asyncio.sleep(0, "result")) == "result"


def test_nothing_of_the_cockpit_waits_in_the_way_that_loses_a_cancellation() -> None:
    sources = Path(cockpit.__file__).parent.rglob("*.py")
    users = [str(p) for p in sources if "asyncio.wait_for(" in p.read_text()]
    assert users == [], "cockpit.core.within.within takes its place"
