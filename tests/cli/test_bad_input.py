"""Every wrong word of a user gets one clear sentence, its exit code, and no traceback."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cockpit.cli import main


def _said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    assert said.out == ""
    return code, said.err


def _user_profile(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "xdg-config" / "ekvi-cockpit" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


BASE = """\
defaults: [{model: tiny}, {data: pydoc}, {training: cpu}, {runner: megatron}, {launcher: process}, {theme: nord},
  {pricing: none}, {server@servers.one: local}, _self_]
"""


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["rnu"], 2, r"no command `rnu`\. Did you mean 'run'"),
        (["run"], 2, r"needs a profile"),
        (["run", "duel-local", "training.seed=1"], 2, r"needs a profile\. Say --profile duel-local\."),
        (["run", "--profile", "duel-local", "--with", "log", "--dry-run"], 2, r"--with adds events to --output json"),
        (["run", "--frofile", "x"], 2, r"`--frofile` is not an option of `ekvi-cockpit run`"),
        (["run", "--profile", "duel-locl"], 2, r"no profile 'duel-locl'\. Did you mean 'duel-local'"),
        (["run", "--profile", "../duel-local"], 2, r"is a path; a profile goes by its name"),
        (["run", "--profile", "duel-local", "--repeats", "0"], 2, r"at least 1 run"),
        (["run", "--profile", "duel-local", "repeats=0"], 2, r"repeats must be at least 1"),
        (["run", "--profile", "duel-local", "nothing"], 2, r"an override needs a '='"),
        (["run", "--profile", "duel-local", "lft:training.seed=1"], 2, r"no server 'lft'\. Did you mean 'left'"),
        (["run", "--profile", "duel-local", "training.learnin_rate=1"], 2, r"Did you mean 'training\.learning_rate'"),
        (["run", "--profile", "duel-local", "training.train_iters=ten"], 2, r"must be a whole number, not 'ten'"),
        (
            ["run", "--profile", "duel-local", "training.parallel.tensor=3"],
            2,
            r"heads 4 does not divide by .*tensor 3",
        ),
        (["run", "--profile", "duel-local", "training.seed=1,2"], 2, r"--multirun"),
        (["run", "--profile", "duel-local", "left:training.seed=1,2", "--multirun"], 2, r"one value"),
        (["run", "--profile", "duel-local", "training=rocm"], 2, r"for amd GPUs, and server 'left' has no GPU"),
        (["run", "--profile", "duel-local", "--servers", "lefty"], 2, r"no server 'lefty'.*Did you mean 'left'"),
        (["run", "--profile", "duel-local", "--servers", ","], 2, r"--servers names no server"),
        (["run", "--profile", "duel-local", "--detach", "--watch"], 2, r"exclude each other"),
        (["run", "--profile", "duel-local", "--watch"], 2, r"terminal"),
        (["run", "--profile", "duel-local", "--with", "gup", "--output", "json", "--dry-run"], 2, r"log and gpu"),
        (["run", "--resume", "last", "--profile", "x"], 2, r"Leave out --profile"),
        (["run", "--resume", "last"], 2, r"no group in"),
        (["show", "nothing"], 2, r"no run or group 'nothing'"),
        (["attach", "last"], 2, r"no group in .* yet"),
        (["compare", "last"], 2, r"no group in"),
        (["compare", "a", "--within", "x"], 2, r"--within x"),
        (["replay", "demo", "--speed", "0"], 2, r"above 0"),
        (["rm", "last", "--yes"], 2, r"no group in"),
        (["runs", "--sort", "nonsense"], 2, r"nonsense"),
        (["runs", "state=FALIED"], 2, r"no run can be in state 'FALIED'\. Did you mean 'FAILED'"),
        (["servers", "add", "a b", "address=local"], 2, r"no server name"),
        (["servers", "add", "a", "adress=local"], 2, r"Did you mean 'address'"),
        (["servers", "add", "a", "address"], 2, r"needs a '='"),
        ([], 2, r"needs a terminal"),
    ],
)
def test_one_sentence_and_the_right_exit_code(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no terminal, whatever runs this test
    found, said = _said(words, capsys)
    assert found == code
    assert re.search(sentence, said), said
    assert said.startswith("ekvi-cockpit: ")
    assert len(said.strip().splitlines()) == 1


def test_a_server_far_away_is_to_be_tried_before_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["servers", "add", "near", "address=local"]) == 0
    assert "Use it" in capsys.readouterr().err
    assert main(["servers", "add", "far", "address=gpu7"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("server/far.yaml\n")
    assert "Try it: `ekvi-cockpit servers test far`" in said.err
    assert main(["servers", "add", "both", "nodes=[gpu7,gpu8]", "ssh.transport=openssh"]) == 0
    assert main(["servers", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["both", "gpu7", "gpu7,gpu8", "openssh", "auto", "yours"] in rows
    assert ["far", "gpu7", "-", "asyncssh", "auto", "yours"] in rows


@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        ("training:\n  learnin_rate: 1\n", ":4", r"Did you mean '(training\.)?learning_rate'"),
        ("training:\n  train_iters: many\n", ":4", r"whole number"),
        ("training:\n  train_iters: [1\n", ":", r"."),
    ],
    ids=["unknown key", "wrong type", "broken yaml"],
)
def test_a_wrong_profile_names_file_and_line(
    text: str, where: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _user_profile(tmp_path, "mine", BASE + text)
    code, said = _said(["run", "--profile", "mine"], capsys)
    assert code == 2
    assert f"{path}{where}" in said
    assert re.search(sentence, said), said


def test_a_runs_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("")
    code, said = _said(["runs", "--runs-dir", str(tmp_path / "runs")], capsys)
    assert code == 2
    assert "folder" in said


def _run(tmp_path: Path, **changes: Any) -> str:
    folder = tmp_path / "runs" / "g.one.r1"
    folder.mkdir(parents=True)
    meta = {"schema": "ekvi.run/1", "id": "g.one.r1", "group": "g", "server": "one", "state": "SUCCEEDED", **changes}
    (folder / "run.json").write_text(json.dumps(meta))
    return "g.one.r1"


def test_a_run_of_a_newer_schema_says_to_upgrade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(tmp_path, schema="ekvi.run/7")
    code, said = _said(["show", run, "--runs-dir", str(tmp_path / "runs")], capsys)
    assert code == 2
    assert "newer" in said
    assert "run.json" in said


def test_a_damaged_run_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(tmp_path)
    (tmp_path / "runs" / run / "run.json").write_text('{"schema": "ekvi.run/1",\n  oops')
    code, said = _said(["show", run, "--runs-dir", str(tmp_path / "runs")], capsys)
    assert code == 2
    assert "run.json:2" in said


def _refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: list[str]) -> str:
    from cockpit.hosts import probe

    async def check(*_: object, **__: object) -> list[str]:
        return missing

    monkeypatch.setattr(probe, "check_python", check)
    code, said = _said(["run", "--profile", "duel-local"], capsys)
    assert code == 3
    return said


def test_a_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ekvi-cockpit[train]" in _refused(monkeypatch, capsys, ["torch"])


def test_a_platform_without_a_megatron_wheel_is_told_what_works_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import platform

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    said = _refused(monkeypatch, capsys, ["megatron.core"])
    assert "no wheel for Darwin on arm64" in said
    assert "replay demo" in said


def test_an_interpreter_without_torch_is_found_out_for_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    words = ["run", "--profile", "smoke-local", f"servers.local.python={bare / 'bin' / 'python'}"]
    code, said = _said(words, capsys)
    assert code == 3
    assert "needs torch, pydantic, which" in said
