"""`stream` and `pong`: lines for who listens, answers to pings, and an end when nobody is there any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.support import REPO, until


class Listener:
    """A command of the agent, spoken with over its stdin and stdout."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runners.agent", *words], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self._data = b""

    def send(self, obj: Any) -> None:
        self.stdin.write(json.dumps(obj).encode() + b"\n")
        self.stdin.flush()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        self._data += self.stdout.read() or b""
        found = [json.loads(line) for line in self._data[: self._data.rfind(b"\n") + 1].splitlines()]
        return [line for line in found if line["type"] == kind]

    def close(self) -> None:
        for pipe in (self.stdin, self.stdout):
            pipe.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    made: list[Listener] = []
    yield made
    for one in made:
        one.close()


def _ping(listener: Listener, number: int) -> dict[str, Any]:
    listener.send({"type": "ping", "id": number, "t0_ns": 5})
    found: dict[str, Any] = until(lambda: [p for p in listener.lines("pong") if p["id"] == number], "a pong")[0]
    return found


def test_pong_answers_pings_with_the_times_between(listeners: list[Listener]) -> None:
    listeners.append(Listener("pong"))
    pong = listeners[0]
    before = time.time_ns()
    told = _ping(pong, 7)
    assert set(told) == {"type", "id", "t0_ns", "t1_ns", "t2_ns"}
    assert before <= told["t1_ns"] <= told["t2_ns"] <= time.time_ns()
    assert told["t0_ns"] == 5
    pong.stdin.write(b'not JSON\n[1]\n{"type":"pin')
    pong.stdin.flush()
    pong.stdin.write(b'g","id":8,"t0_ns":1}\n')
    pong.stdin.flush()
    until(lambda: [p["id"] for p in pong.lines("pong")] == [7, 8], "only pings are answered")
    pong.stdin.close()
    assert pong.process.wait(10) == 0


def test_a_stream_has_lines_and_pongs_until_its_stdin_ends(listeners: list[Listener]) -> None:
    words = ("--vendor", "nvidia", "--hz", "20", "--gpus", "1", "--source", "tests.agent.players:Well")
    listeners.append(Listener("stream", *words))
    stream = listeners[0]
    until(lambda: len(stream.lines("tick")) >= 10, "ticks")
    _ping(stream, 1)
    hello = stream.lines("hello")[0]
    assert (hello["schema"], hello["backend"], [d["index"] for d in hello["devices"]]) == ("ekvi.gpu/1", "well", [1])
    assert [tick["seq"] for tick in stream.lines("tick")][:10] == list(range(10))
    stream.stdin.close()
    assert stream.process.wait(10) == 0


def test_a_stream_that_hears_nothing_ends(listeners: list[Listener]) -> None:
    listeners.append(Listener("stream", "--vendor", "cpu", "--idle-end", "0.3"))
    assert listeners[0].process.wait(10) == 0


def test_a_stream_that_nobody_reads_ends(listeners: list[Listener]) -> None:
    listeners.append(Listener("stream", "--vendor", "cpu", "--hz", "50"))
    stream = listeners[0]
    until(lambda: stream.lines("tick"), "a tick")
    stream.stdout.close()
    assert stream.process.wait(10) == 0


def test_a_stream_whose_reader_sleeps_ends(listeners: list[Listener]) -> None:
    listeners.append(Listener("stream", "--vendor", "cpu", "--hz", "1000", "--idle-end", "1.5"))
    assert listeners[0].process.wait(15) == 0, "its pipe is full long before that"


@pytest.mark.parametrize("words", [("--gpus", "3-x"), ("--vendor", "intel")])
def test_what_cannot_be_is_refused(words: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "runners.agent", "stream", *words]
    done = subprocess.run(command, cwd=REPO, capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False)
    assert done.returncode == 2
    assert words[1].encode() in done.stderr
