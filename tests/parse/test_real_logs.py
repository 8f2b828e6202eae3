"""Whole logs of real trainings, where a folder of them is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cockpit.core.events import Diagnostic, Iteration
from cockpit.parse.stream import StreamParser

REAL = os.environ.get("EKVI_REAL_DATA", "")
LOGS = sorted(Path(REAL, "logs").glob("bigscience__*.txt")) if REAL else []

pytestmark = pytest.mark.skipif(not LOGS, reason="EKVI_REAL_DATA names no folder of real captures")


@pytest.mark.parametrize("path", LOGS or [Path("none")], ids=lambda p: p.stem)
def test_every_iteration_of_a_real_log_is_there_once(path: Path) -> None:
    data = path.read_bytes()
    parser = StreamParser()
    events = parser.feed(data, 0) + parser.finish()
    lines = re.findall(
        rb"^ iteration +(\d+)/ *(\d+) \|.*elapsed time per iteration \(ms\): ([\d.]+)", data, re.MULTILINE
    )
    assert len(lines) > 10
    iterations = [e for e in events if isinstance(e, Iteration)]
    assert [(e.step, e.total) for e in iterations] == [(int(s), int(t)) for s, t, _ in lines]
    assert [e.step_s for e in iterations] == pytest.approx([float(ms) / 1e3 for _, _, ms in lines])
    losses = re.findall(rb"\| lm loss: ([\d.E+-]+)", data)
    assert [e.loss for e in iterations if e.loss is not None] == [float(x) for x in losses]


@pytest.mark.parametrize("path", LOGS or [Path("none")], ids=lambda p: p.stem)
def test_tokens_follow_from_the_arguments_of_a_real_log(path: Path) -> None:
    data = path.read_bytes()
    events = StreamParser().feed(data, 0)

    def said(key: bytes) -> int:
        found = re.search(rb"^  " + key + rb" \.+ (\d+)$", data, re.MULTILINE)
        assert found
        return int(found[1])

    (arguments,) = [e for e in events if isinstance(e, Diagnostic) and e.code == "arguments"]
    block = data[data.index(b"- arguments -") : data.index(b"- end of arguments -")]
    assert len(arguments.data) == len(re.findall(rb"^  \w+ \.+ ", block, re.MULTILINE))
    assert arguments.data["world_size"] == said(b"world_size")
    tokens = said(b"global_batch_size") * said(b"seq_length")
    assert {e.tokens for e in events if isinstance(e, Iteration)} == {tokens}
    validations = len(re.findall(rb"^ validation loss at iteration", data, re.MULTILINE))
    assert sum(isinstance(e, Diagnostic) and e.code == "validation" for e in events) == validations
