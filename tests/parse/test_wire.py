"""What the runners print is what the parser gives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.core.events import Artifact, Diagnostic, Event, Iteration, Stage
from cockpit.parse.stream import StreamParser
from runners import wire

FLOATS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.none() | st.integers(0, 1 << 62)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | FLOATS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def parsed(line: str) -> list[Event]:
    return StreamParser().feed(line.encode() + b"\n", 0)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 1 << 62),
    COUNTS,
    st.tuples(FLOATS, FLOATS, FLOATS, FLOATS),
    st.dictionaries(st.text(max_size=8), JSON, max_size=3),
    st.sampled_from(["", "0: ", "[default3]:", "(Worker, pid=1) "]),
)
def test_an_iteration_comes_back_as_it_was_printed(
    step: int,
    tokens: int | None,
    floats: tuple[float | None, float | None, float | None, float | None],
    extra: dict[str, Any],
    prefix: str,
) -> None:
    loss, step_s, lr, grad_norm = floats
    line = wire.render(
        "iteration", step=step, total=None, loss=loss, step_s=step_s, tokens=tokens, samples=None, lr=lr,
        grad_norm=grad_norm, extra=extra,
    )  # fmt: skip
    (event,) = parsed(prefix + line)
    assert isinstance(event, Iteration)
    assert (event.step, event.loss, event.step_s, event.tokens) == (step, loss, step_s, tokens)
    assert (event.lr, event.grad_norm, event.samples) == (lr, grad_norm, None)
    assert event.t is not None
    assert event.extra["mono"] > 0
    assert {k: v for k, v in event.extra.items() if k != "mono"} == {k: v for k, v in extra.items() if k != "mono"}


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_no_json_breaks_it_and_what_cannot_be_an_event_warns(value: Any) -> None:
    for obj in (value, {"type": value}, {"type": "iteration", "step": value}, {"type": "diagnostic", "code": value}):
        for event in parsed(wire.MARK + json.dumps(obj)):
            json.dumps(event.to_json(), allow_nan=False)


def test_the_other_types_come_back() -> None:
    stage, artifact, diagnostic = (
        parsed(wire.render("stage", stage="train", status="failed", message="why"))[0],
        parsed(wire.render("artifact", path="a/b", bytes=3, sha256="00"))[0],
        parsed(wire.render("diagnostic", level="info", code="result", message="m", data={"x": 1}))[0],
    )
    assert isinstance(stage, Stage)
    assert (stage.stage, stage.status, stage.message) == ("train", "failed", "why")
    assert isinstance(artifact, Artifact)
    assert (artifact.path, artifact.bytes, artifact.sha256) == ("a/b", 3, "00")
    assert isinstance(diagnostic, Diagnostic)
    assert (diagnostic.level, diagnostic.code, diagnostic.data) == ("info", "result", {"x": 1})


def test_damage_warns_once() -> None:
    parser = StreamParser()
    bad = [
        b'@ekvi {"type":"iteration","st',
        b'@ekvi {"type":"nothing"}',
        b'@ekvi {"type":"iteration","step":true}',
        b"@ekvi ",
    ]
    deep = b"@ekvi " + b"[" * 100_000
    events = parser.feed(b"\n".join([*bad, deep, b""]), 0)
    assert [(e.code, e.level) for e in events if isinstance(e, Diagnostic)] == [("wire_damaged", "warning")]
    assert len(events) == 1


def test_what_is_beyond_a_number_is_unknown() -> None:
    (event,) = parsed('@ekvi {"type":"iteration","step":1,"loss":NaN,"grad_norm":1e999,"lr":-Infinity}')
    assert isinstance(event, Iteration)
    assert (event.loss, event.grad_norm, event.lr) == (None, None, None)


def test_what_no_file_can_hold_is_unknown() -> None:
    line = (
        r'@ekvi {"type":"diagnostic","code":"model","data":{"a":1e999,"b":"x\ud800","c":[-1e400],"d":"\ud83d\ude00"}}'
    )
    (event,) = parsed(line)
    assert isinstance(event, Diagnostic)
    assert event.data == {"a": None, "b": "x?", "c": [None], "d": "\U0001f600"}
    (event,) = parsed('@ekvi {"type":"iteration","step":1,"loss":1e400,"size":1' + "0" * 400 + "}")
    assert isinstance(event, Iteration)
    assert (event.loss, event.extra) == (None, {"size": None})
