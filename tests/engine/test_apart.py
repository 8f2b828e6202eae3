"""Statistics away from the screen's process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cockpit.core.errors import StoreError
from cockpit.engine.apart import Apart


def _pid() -> int:
    return os.getpid()


def _refuse() -> None:
    raise StoreError("no room.", hint="Make some.")


async def test_a_thread_is_in_this_process_and_a_process_is_not() -> None:
    assert await Apart()(_pid) == os.getpid()
    apart = Apart(process=True)
    try:
        first = await apart(_pid)
        assert first != os.getpid()
        assert await apart(_pid) == first, "one process serves all calls"
    finally:
        apart.close()


async def test_an_error_comes_back_whole() -> None:
    apart = Apart(process=True)
    try:
        with pytest.raises(StoreError, match=r"no room\. Make some\."):
            await apart(_refuse)
    finally:
        apart.close()


async def test_figures_come_also_where_the_process_was_killed() -> None:
    apart = Apart(process=True)
    try:
        assert await apart(_pid) != os.getpid()
        assert apart._pool is not None
        for pid in list(apart._pool._processes or {}):
            os.kill(pid, signal.SIGKILL)
        assert await apart(_pid) == os.getpid()
    finally:
        apart.close()


_ON_A_SCREEN = """
import asyncio, os
from textual.app import App
from cockpit.engine.apart import Apart

class Screen(App):
    async def on_mount(self):
        apart = Apart(process=True)
        pid = await apart(os.getpid)
        apart.close()
        self.exit(pid)

async def main():
    app = Screen()
    async with app.run_test():
        pass
    assert app.return_value not in (None, os.getpid())

asyncio.run(main())
"""


def test_a_screen_can_start_the_process() -> None:
    # A process of its own: what multiprocessing starts once would be there already from another test.
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_SCREEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
