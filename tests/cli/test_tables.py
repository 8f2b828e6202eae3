"""Tables on a terminal: what does not fit gives way, and the rest stays readable."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cockpit.cli import main
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


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ["c", "b", "a"]),
        (["--limit", "1"], ["c"]),
        (["--reverse"], ["a", "b", "c"]),
        (["--sort", "created"], ["a", "b", "c"]),
        (["--sort", "created", "--reverse"], ["c", "b", "a"]),
    ],
)
def test_runs_are_listed_newest_first_where_nothing_else_is_said(
    words: list[str], ids: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "bca":
        folder = tmp_path / f"{name}.one.r1"
        folder.mkdir()
        meta = {"schema": "ekvi.run/1", "id": folder.name, "group": name, "server": "one", "state": "SUCCEEDED"}
        (folder / "run.json").write_text(json.dumps({**meta, "created": float(ord(name))}))
    assert main(["runs", "--runs-dir", str(tmp_path), "--output", "json", *words]) == 0
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == ids


LISTED = [
    {"id": f"20261121-101112-duel-hosts-0a1b.rocm-host.r{n}", "server": "rocm-host", "state": "SUCCEEDED",
     "took": "1:02:03", "size": "312.1 kB", "created": "2026-11-21 06:14"}
    for n in (1, 2)
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (130, ["ID", "SERVER", "STATE", "TOOK", "SIZE", "CREATED"]),
        (94, ["ID", "SERVER", "STATE", "TOOK", "SIZE"]),
        (80, ["ID", "SERVER", "STATE", "TOOK"]),
    ],
)
def test_a_narrow_terminal_gets_whole_columns(
    columns: int, heads: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    print_table(LISTED, "nothing", spare=("created", "size"))
    head, first, _ = capsys.readouterr().out.splitlines()
    assert head.split() == heads
    assert len(first) <= columns
    assert "…" not in first


def test_a_folded_column_goes_on_below_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "Llama 3.1 8B as each vendor ships it, Megatron-Bridge on NVIDIA and Primus on AMD (different programs)"
    rows = [{"name": "duel-llama31-8b-vendor", "description": words, "where": "shipped"}]
    print_table(rows, "nothing", folded=("description",))
    assert words in capsys.readouterr().out  # a pipe gets one line a row
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    print_table(rows, "nothing", folded=("description",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].endswith("shipped")
    assert " ".join(line[24:71].strip() for line in lines[1:]) == words
