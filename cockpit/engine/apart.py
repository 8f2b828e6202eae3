"""Where statistics are computed: in a thread, or in a process of their own where a screen must stay smooth and small.

numpy and scipy take 30 MB and hold the interpreter while they load; a screen pays neither.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Apart:
    """Calls functions away from the event loop; with `process` their arguments and results are pickled."""

    def __init__(self, *, process: bool = False) -> None:
        self._process = process
        self._pool: ProcessPoolExecutor | None = None

    async def __call__(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The function's result; what it raises is raised here."""
        if not self._process:
            return await asyncio.to_thread(function, *args, **kwargs)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would take the screen's threads and files along
            with redirect_stderr(sys.__stderr__):  # a screen's own has file number -1, which no child can be given
                self._pool = ProcessPoolExecutor(1, context, initializer=_alone)
        try:
            return await asyncio.wrap_future(self._pool.submit(function, *args, **kwargs))
        except BrokenProcessPool:  # it was killed from outside: the figures are still wanted
            self._process = False
            return await asyncio.to_thread(function, *args, **kwargs)

    def close(self) -> None:
        """Let the process go. May be called twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _alone() -> None:
    """Ctrl-C at the terminal is for the cockpit to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
