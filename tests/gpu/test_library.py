"""The made library itself: what a test programs is what a process sees."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.library import At, Each, Program, build, environment

LIMIT_S = 30
_ASK = """
import ctypes, sys
lib = ctypes.CDLL("libmade.so.1")
for line in sys.stdin:
    word, *numbers = line.split()
    cells = (ctypes.c_uint * 8)(*range(8))
    try:
        answer = getattr(lib, word)(*(ctypes.c_uint64(int(n)) for n in numbers), ctypes.byref(cells))
    except AttributeError:
        answer = "absent"
    print(answer, *cells, flush=True)
"""


class Asked:
    """A process that loaded the library."""

    def __init__(self, program: Program) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(program),
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ask(self, line: str) -> list[str]:
        self.say(line)
        return self.hear()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("made"), "libmade.so.1", ["first", "second"], 3)


@pytest.fixture
def program(tmp_path: Path, library: Path) -> Program:
    return Program(tmp_path, library)


@pytest.fixture
def asked(program: Program) -> Iterator[Asked]:
    made = Asked(program)
    yield made
    made.close()


def test_what_is_not_programmed_and_what_is_not_there(asked: Asked) -> None:
    assert asked.ask("first 1")[0] == "3"
    assert asked.ask("third 1")[0] == "absent"


def test_a_rule_is_seen_at_once_and_the_last_that_fits_is_taken(program: Program, asked: Asked) -> None:
    program.on("first", out={1: b"\x09\0\0\0"})
    program.on("first", {0: 7}, status=4)
    assert asked.ask("first 1")[:3] == ["0", "9", "1"]
    assert asked.ask("first 7")[:2] == ["4", "0"]
    program.on("first", {0: 7}, status=5)
    assert asked.ask("first 7")[0] == "5"
    program.forget("first")
    assert asked.ask("first 7")[0] == "3"
    assert program.calls("first") == 4


def test_a_series_goes_on_call_by_call_and_ends_or_begins_anew(program: Program, asked: Asked) -> None:
    steps = [bytes([n, 0, 0, 0]) for n in (1, 2)]
    program.on("first", out={1: steps})
    program.on("second", out={1: steps}, loop=True)
    assert [asked.ask("first 0")[1] for _ in range(4)] == ["1", "2", "2", "2"]
    assert [asked.ask("second 0")[1] for _ in range(4)] == ["1", "2", "1", "2"]


def test_a_rule_may_begin_after_some_calls(program: Program, asked: Asked) -> None:
    asked.ask("first 0")
    program.on("first")
    program.on("first", status=15, after=2)
    assert [asked.ask("first 0")[0] for _ in range(4)] == ["0", "0", "15", "15"]


def test_an_array_is_filled_by_the_keys_in_it(program: Program, asked: Asked) -> None:
    """The cells are 0..7: four items of two, with the keys 0, 2, 4, 6."""
    values = {2: b"\x63\0\0\0", None: b"\x01\0\0\0"}
    program.on("first", each=Each(1, 8, 0, values, at=4))
    assert asked.ask("first 3")[1:] == ["0", "1", "2", "99", "4", "1", "6", "7"]


def test_a_key_may_stand_behind_a_pointer(program: Program, asked: Asked) -> None:
    program.on("first", {At(1, 4, 4): 1}, status=8)
    program.on("second", {At(1, 4, 4): 2}, status=8)
    assert [asked.ask(f"{name} 0")[0] for name in ("first", "second")] == ["8", "3"]


def test_a_call_that_blocks_ends_when_it_is_told_otherwise(program: Program, asked: Asked) -> None:
    program.on("first", delay_s=600.0)
    asked.say("first 0")
    program.on("first", status=6)
    assert asked.hear()[0] == "6"


def test_it_prints_and_it_crashes(program: Program, asked: Asked) -> None:
    program.on("first", say="hello from a driver\n")
    assert asked.ask("first 0") == ["hello", "from", "a", "driver"]
    assert asked.hear()[0] == "0"
    program.on("second", crash=True)
    asked.say("second 0")
    assert asked.process.wait(timeout=LIMIT_S) == -signal.SIGSEGV


def test_an_unknown_symbol_is_a_mistake_of_the_test(program: Program) -> None:
    with pytest.raises(KeyError):
        program.on("third")
