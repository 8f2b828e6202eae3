"""A program on a server that is talked with, over both transports."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from cockpit.hosts import Host
from cockpit.hosts.base import Talk

pytestmark = pytest.mark.hosts

LIMIT_S = 20.0
_ECHO = 'echo $$; while read -r word; do echo "heard $word"; done; echo gone >&2; exit 3'


async def line(talk: Talk) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        said += await talk.read()
    return said


async def test_it_hears_answers_and_its_end_is_told(host: Host) -> None:
    async with asyncio.timeout(LIMIT_S), host.talk(["sh", "-c", _ECHO]) as talk:
        await line(talk)
        for word in (b"one\n", b"two\n"):
            await talk.send(word)
            assert await line(talk) == b"heard " + word
    async with asyncio.timeout(LIMIT_S), host.talk(["sh", "-c", "echo out; echo why >&2; exit 3"]) as talk:
        assert await line(talk) == b"out\n"
        assert await talk.read() == b""
        ended = await talk.ended()
    assert (ended.rc, ended.last_words) == (3, "why")


async def test_the_end_of_the_talk_ends_the_program(host: Host) -> None:
    async with asyncio.timeout(LIMIT_S), host.talk(["sh", "-c", _ECHO]) as talk:
        pid = int(await line(talk))
        assert psutil.pid_exists(pid)
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(pid):
            await asyncio.sleep(0.02)
