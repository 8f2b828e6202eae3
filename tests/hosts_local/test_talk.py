"""A program that is talked with: it hears and answers, its end is told, and nothing of it stays."""

from __future__ import annotations

import asyncio
import sys

import psutil
import pytest

from cockpit.core.errors import ServerError
from cockpit.hosts import LocalHost
from cockpit.hosts.base import Host, Talk

LIMIT_S = 20.0
_ECHO = """
import os, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    print("heard " + line.strip(), flush=True)
sys.exit("no more input")
"""


@pytest.fixture
def host() -> Host:
    return LocalHost()


async def line(talk: Talk) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        said += await talk.read()
    return said


async def test_it_hears_answers_and_leaves_nothing(host: Host) -> None:
    async with asyncio.timeout(LIMIT_S), host.talk([sys.executable, "-c", _ECHO]) as talk:
        pid = int(await line(talk))
        for word in (b"one\n", b"two\n"):
            await talk.send(word)
            assert await line(talk) == b"heard " + word
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


async def test_its_end_is_told_with_its_last_words(host: Host) -> None:
    words = "import sys; print('out'); sys.exit('a sensor is missing')"
    async with asyncio.timeout(LIMIT_S), host.talk([sys.executable, "-c", words]) as talk:
        assert await line(talk) == b"out\n"
        assert await talk.read() == b""
        await talk.send(b"nobody hears this\n")
        ended = await talk.ended()
    assert (ended.rc, ended.last_words) == (1, "a sensor is missing")


async def test_a_program_that_is_not_there_is_one_sentence(host: Host) -> None:
    with pytest.raises(ServerError, match="cannot start it"):
        async with asyncio.timeout(LIMIT_S), host.talk(["/nothing/there"]):
            pass
