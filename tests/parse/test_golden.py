"""A folder of logs, each beside the events that it stands for: NAME.log and NAME.jsonl.

`python -m tests.parse.test_golden` writes the .jsonl files anew; read their difference before it is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cockpit.parse.stream import StreamParser

GOLDEN = Path(__file__).parent / "golden"
LOGS = sorted(p.stem for p in GOLDEN.glob("*.log"))


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a whole log, without what only a journal knows."""
    parser = StreamParser()
    events = parser.feed(data, 0) + parser.finish()
    return [{k: v for k, v in e.to_json().items() if k not in ("seq", "t_recv", "run")} for e in events]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_gives_its_events(name: str) -> None:
    wanted = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    assert events_of((GOLDEN / f"{name}.log").read_bytes()) == wanted


@pytest.mark.parametrize("name", LOGS)
def test_an_offset_is_the_start_of_a_line(name: str) -> None:
    data = (GOLDEN / f"{name}.log").read_bytes()
    for event in events_of(data):
        assert event["offset"] == 0 or data[event["offset"] - 1] == ord("\n")


def _write() -> None:
    for name in LOGS:
        lines = [json.dumps(e) + "\n" for e in events_of((GOLDEN / f"{name}.log").read_bytes())]
        (GOLDEN / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    _write()
