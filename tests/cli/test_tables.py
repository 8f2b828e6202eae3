"""Tables on a terminal: what does not fit gives way, and the rest stays readable."""

from __future__ import annotations

import os
import sys

import pytest

from cockpit.cli.tables import print_table

ROWS = [
    {"id": "20261121-101112-duel-0a1b.left.r1", "server": "left", "state": "SUCCEEDED", "took": "0:20"},
    {
        "id": "20261121-101112-duel-0a1b.left.p1.r1",
        "server": "left|training.seed=1|training.micro_batch=2",
        "state": "FAILED",
        "took": "0:01",
    },
]


def _printed(columns: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    if columns is not None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    print_table(ROWS, "nothing")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [66, 80])
def test_a_long_cell_hides_no_other_column(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, first, second = _printed(columns, monkeypatch, capsys)
    assert head.endswith("TOOK")
    assert first.endswith("0:20")
    assert "FAILED" in second
    assert second.startswith(str(ROWS[1]["id"]) + "  left|")
    assert max(map(len, (head, first, second))) <= columns


def test_a_terminal_too_narrow_for_all_keeps_whole_ids(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _printed(40, monkeypatch, capsys)
    assert all(str(row["id"]) in line for row, line in zip(ROWS, lines[1:], strict=True))
    assert all(len(line) <= 40 for line in lines)


def test_a_pipe_gets_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(ROWS[1]["server"]) in _printed(None, monkeypatch, capsys)[2]
