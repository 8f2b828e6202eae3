"""The agent's state file."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.core.events import State
from cockpit.parse.states import parse_states


def line(seq: int, state: str, **more: object) -> bytes:
    return json.dumps({"agent_seq": seq, "t": 5.5, "mono": 1.0, "state": state, **more}).encode() + b"\n"


def test_changes_come_back_with_all_they_say() -> None:
    data = line(0, "PENDING", reason="waits for slot default") + line(
        1, "FAILED", exit_code=None, signal=9, stage="train", data={"tail": ["a"]}
    )
    pending, failed = parse_states(data)
    assert (pending.state, pending.reason, pending.agent_seq, pending.t) == (
        State.PENDING, "waits for slot default", 0, 5.5,
    )  # fmt: skip
    assert (failed.state, failed.exit_code, failed.signal, failed.stage, failed.agent_seq) == (
        State.FAILED, None, 9, "train", 1,
    )  # fmt: skip


def test_what_follows_the_last_newline_waits() -> None:
    assert [c.agent_seq for c in parse_states(line(0, "PENDING") + line(1, "RUNNING")[:-1])] == [0]


def test_a_damaged_line_costs_only_itself() -> None:
    data = line(0, "PENDING") + b'{"agent_seq":1,"sta\n\n[1]\n' + line(1, "NO_SUCH_STATE") + line(1, "RUNNING")
    assert [(c.agent_seq, c.state) for c in parse_states(data)] == [(0, State.PENDING), (1, State.RUNNING)]


def test_a_number_that_no_clock_shows_is_unknown() -> None:
    (change,) = parse_states(b'{"state":"RUNNING","t":1' + b"0" * 400 + b"}\n")
    assert (change.state, change.t) == (State.RUNNING, None)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_can_break_it(data: bytes) -> None:
    parse_states(data + b"\n")
