"""`show RUN --iterations`: telemetry joined to a run's iterations, as a table and as one document."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cockpit
from cockpit.cli import main
from cockpit.store.rundir import RunDir

DEMO = Path(cockpit.__file__).parent / "demo" / "duel.zip"
with zipfile.ZipFile(DEMO) as _demo:
    RUN = next(name.split("/")[0] for name in _demo.namelist() if ".left.r1/" in name)
GPU = {"power_w": 512.25, "temp_mem_c": 71.0, "clk_sm_mhz": 1905, "throttle": ["power"]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The demo's runs, one of them with the telemetry of a GPU for its first half."""
    folder = tmp_path / "runs"
    with zipfile.ZipFile(DEMO) as demo:
        demo.extractall(folder)
    t = RunDir(folder / RUN).columns()["t"]
    first, last = float(t[0]) - 1, float(t[60])
    lines: list[dict[str, Any]] = [{"type": "hello", "hz": 50.0, "boot_id": "b", "devices": [{"index": 0}]}]
    for k in range(int((last - first) * 50)):
        device = {"index": 0, **GPU}
        lines.append({"type": "tick", "seq": k, "t_wall_ns": round((first + k / 50) * 1e9), "devices": [device]})
    (folder / RUN / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def show(runs: Path, *words: str) -> int:
    """`ekvi-cockpit show ...` in these runs."""
    return main(["show", *words, "--runs-dir", str(runs)])


def test_the_document_has_every_iteration_with_null_for_what_is_unknown(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(runs, RUN, "--iterations", "--output", "json") == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["iterations"]
    assert (document["schema"], document["id"], document["lines"], len(rows)) == ("ekvi.iterations/1", RUN, 120, 120)
    assert [row["step"] for row in rows] == list(range(1, 121))
    early, late = rows[5], rows[-1]
    assert early["power_w"] == pytest.approx(512.25)
    assert early["energy_j"] == pytest.approx(512.25 * early["step_s"], rel=0.1)
    assert (early["temp_c"], early["sensor"], early["throttle"]) == (71.0, "GPU 0 memory", ["power"])
    assert (late["power_w"], late["energy_j"], late["throttle"], late["samples"]) == (None, None, None, 0)


def test_the_table_fits_a_terminal(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    assert show(runs, RUN, "--iterations") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 121
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:5] == ["STEP", "LOSS", "STEP_S", "POWER_W", "ENERGY_J"]
    assert "512.2" in lines[6]
    assert "power" in lines[6]
    assert lines[-1].split()[3:5] == ["-", "-"]


def test_a_run_without_telemetry_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / RUN / "telemetry.jsonl").unlink()
    assert show(runs, RUN, "--iterations") == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 121
    assert "without telemetry" in told.err


def test_a_group_of_several_runs_is_refused_with_one_to_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(runs, RUN.partition(".")[0], "--iterations") == 2
    assert f"Such as {RUN}." in capsys.readouterr().err
