"""`import`: logs that were kept elsewhere become runs, with the telemetry beside them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cockpit.cli import main
from cockpit.engine.imported_log import LOG_FORMATS, zones
from cockpit.store.store import Store

T0 = 1_769_850_000.0  # seconds since the epoch: 2026-01-31 09:00:00 UTC
STEPS = 120
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of somebody's logs, on a machine whose clock on the wall is two hours ahead of UTC."""
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    made = tmp_path / "H200 box"
    made.mkdir()
    yield made
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run one command on the test's own runs: its exit code, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main([*map(str, words), "--runs-dir", str(tmp_path / "runs")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def brought(cli: Cli, *words: object) -> tuple[dict[str, Any], str]:
    """The document of an import that works, and what was said on stderr."""
    code, out, err = cli("import", *words, "--output", "json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def store_of(folder: Path) -> Store:
    return Store(folder.parent / "runs")


def megatron(steps: int = STEPS, total: int = STEPS, *, ahead_h: float = 0, stamps: bool = True) -> str:
    """A log of steps of a second, with or without times; the clock on the wall is `ahead_h` ahead of UTC."""
    lines = []
    for step in range(1, steps + 1):
        shown = datetime.fromtimestamp(T0 + step, UTC) + timedelta(hours=ahead_h)
        head = f"[{shown:%Y-%m-%d %H:%M:%S.%f}] " if stamps else ""
        lines.append(
            f" {head}iteration {step:8d}/{total:8d} | consumed samples: {step * 8:12d} | "
            f"elapsed time per iteration (ms): 1000.0 | global batch size: 8 | lm loss: {5 - step / 100:.6E} |\n"
        )
    return "".join(lines)


def wire(steps: int = STEPS, *, done: bool = True) -> str:
    """What our own runner prints."""
    said: list[dict[str, Any]] = [{"type": "stage", "stage": "train", "status": "start", "t": T0}]
    said += [
        {"type": "iteration", "t": T0 + step, "step": step, "loss": 5.0 / step, "step_s": 1.0, "tokens": 1024}
        for step in range(1, steps + 1)
    ]
    said += [{"type": "stage", "stage": "train", "status": "done", "t": T0 + steps}] if done else []
    return "".join(f"@ekvi {json.dumps(obj)}\n" for obj in said)


def ticks(path: Path, begin: float = T0 - 10, end: float = T0 + STEPS + 10, **more: Any) -> Path:
    """Telemetry of a GPU that takes 100 W before T0 and 500 W from then on, by power and by counter."""
    hello: dict[str, Any] = {
        "type": "hello",
        "schema": "ekvi.gpu/1",
        "agent_id": "a",
        "boot_id": "b",
        "backend": "nvml",
    }
    device = {"index": 0, "model": "NVIDIA H200", "power_scope": "gpu", "mem_total": 139 << 30}
    hello |= {"vendor": "nvidia", "hz": 2.0, "devices": [device], "host": {"hostname": "box"}, "t_wall_ns": 0}
    lines = [{**hello, **more}]
    for k in range(int((end - begin) * 2)):
        t = begin + k / 2
        joules = 100.0 * (min(t, T0) - begin) + 500.0 * max(0.0, t - T0)
        values = {
            "index": 0,
            "power_w": 500.0 if t >= T0 else 100.0,
            "energy_j": joules,
            "util": 0.9,
            "temp_hot_c": 71.0,
        }
        ns = round(t * 1e9)
        lines.append(
            {
                "type": "tick", "seq": k, "t_mono_ns": ns, "t_wall_ns": ns,
                "devices": [{**values, "procs": [{"pid": 7, "name": "train", "mem": 1, "run": None}]}],
            }
        )  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def metric(cli: Cli, run: str, name: str) -> float | None:
    code, out, _ = cli("show", run, "--output", "json")
    assert code == 0
    value: float | None = json.loads(out)["metrics"][name]["value"]
    return value


def test_a_log_and_its_telemetry_become_a_run_with_its_energy(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    ticks(folder / "train.telemetry.jsonl")
    made, _ = brought(cli, folder / "train.log")
    assert list(made) == ["id", "runs"]
    (run,) = made["runs"]
    assert run == f"{made['id']}.h200-box.r1"
    meta = store_of(folder).run_dir(run).meta()
    assert (meta["state"], meta["vendor"], meta["server"]) == ("SUCCEEDED", "nvidia", "h200-box")
    assert (meta["started"], meta["ended"]) == (T0, T0 + STEPS)
    assert metric(cli, run, "energy_j") == pytest.approx(500 * STEPS, rel=0.01)
    assert metric(cli, run, "power_idle_w") is None, "before its first iteration a program loads, which is no idling"
    assert metric(cli, run, "energy_above_idle_j") is None
    assert metric(cli, run, "tokens_per_s_gpu") == pytest.approx(1024, rel=0.01)
    assert "neighbours" not in meta["provenance"], "its own processes cannot be told from others'"


def test_telemetry_of_a_whole_day_is_cut_to_the_run(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    named = ticks(folder / "day.jsonl", T0 - 2000, T0 + 2000)
    made, err = brought(cli, folder / "train.log", "--telemetry", named)
    assert err == ""
    times = [t["t_wall_ns"] / 1e9 for t in store_of(folder).run_dir(made["runs"][0]).ticks() if t["type"] == "tick"]
    assert T0 - 31 <= min(times) <= T0 - 5
    assert T0 + STEPS + 5 <= max(times) <= T0 + STEPS + 31


@pytest.mark.parametrize(("ahead_h", "zone"), [(0, "UTC"), (5.5, "UTC+05:30"), (-8, "UTC-08:00")])
def test_times_without_a_zone_are_read_in_the_one_where_the_telemetry_fits(
    folder: Path, cli: Cli, ahead_h: float, zone: str
) -> None:
    (folder / "train.log").write_text(megatron(ahead_h=ahead_h))
    ticks(folder / "telemetry.jsonl")
    made, err = brought(cli, folder / "train.log")
    meta = store_of(folder).run_dir(made["runs"][0]).meta()
    assert f"read as {zone}, the one in which its telemetry fits" in err
    assert meta["provenance"]["imported"]["zone"] == zone
    assert meta["started"] == pytest.approx(T0, abs=0.01)
    assert metric(cli, made["runs"][0], "energy_j") == pytest.approx(500 * STEPS, rel=0.01)


def test_where_several_zones_fit_it_is_this_machines(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(megatron(ahead_h=2))
    named = ticks(folder / "day.jsonl", T0 - 4000, T0 + 4000)
    made, err = brought(cli, folder / "train.log", "--telemetry", named)
    assert "read as UTC+02:00, this machine's" in err
    assert store_of(folder).run_dir(made["runs"][0]).meta()["started"] == pytest.approx(T0, abs=0.01)


def test_telemetry_of_another_time_is_said_and_kept_and_no_energy_is_made_of_it(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    kept = ticks(folder / "telemetry.jsonl", T0 + 9000, T0 + 9100)
    made, err = brought(cli, folder / "train.log")
    assert "telemetry.jsonl is of another time" in err
    assert "its energy is not known" in err
    run_dir = store_of(folder).run_dir(made["runs"][0])
    assert (run_dir.artifacts / "telemetry.jsonl").read_bytes() == kept.read_bytes()
    for name in ("energy_j", "power_w", "temp_max_c", "mem_peak_by"):
        assert metric(cli, made["runs"][0], name) is None, name


def test_a_log_without_times_keeps_its_telemetry_apart(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(megatron(stamps=False))
    ticks(folder / "telemetry.jsonl")
    made, err = brought(cli, folder / "train.log")
    assert "its lines tell no time" in err
    assert metric(cli, made["runs"][0], "energy_j") is None
    assert metric(cli, made["runs"][0], "step_s") == pytest.approx(1.0)


def test_telemetry_that_began_late_is_said(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    ticks(folder / "telemetry.jsonl", T0 + 60, T0 + STEPS + 5)
    _, err = brought(cli, folder / "train.log")
    assert "has not all of the log's time" in err


def test_repeats_of_two_folders_are_two_sides_that_compare_sets_against_each_other(tmp_path: Path, cli: Cli) -> None:
    logs = []
    for name, pace in (("left", 1.0), ("right", 1.5)):
        (tmp_path / name).mkdir()
        for repeat in range(3):
            logs.append(tmp_path / name / f"run{repeat}.log")
            logs[-1].write_text(wire().replace('"step_s": 1.0', f'"step_s": {pace + repeat / 1000}'))
    made, _ = brought(cli, *logs)
    assert [run.split(".", 1)[1] for run in made["runs"]] == [
        f"{s}.r{i}" for s in ("left", "right") for i in (1, 2, 3)
    ]
    code, out, _ = cli("compare", "last", "--output", "json")
    assert code == 0
    document = json.loads(out)
    assert [side["name"] for side in document["sides"]] == ["left", "right"]
    (speed,) = (m for m in document["metrics"] if m["name"] == "tokens_per_s")
    assert speed["verdict"] == "left_better"
    assert document["parity"]["verdict"] == "labelled", "what was configured is not known"
    assert [d["key"] for d in document["parity"]["differences"]] == ["config"]


def test_how_a_run_ended_is_not_made_up(folder: Path, cli: Cli) -> None:
    trouble = 'Traceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: CUDA error: out of memory\n'
    logs = {
        "cut": (megatron(50), "LOST", "the log ends at step 50 of 120 without saying why"),
        "died": (megatron(50) + trouble, "FAILED", "out of memory"),
        "whole": (megatron(), "SUCCEEDED", "reaches step 120 of 120"),
        "recovered": (megatron(20) + trouble + megatron(), "SUCCEEDED", "reaches step 120 of 120"),
        "endless": (wire(done=False), "SUCCEEDED", "how many steps were to come is not in it"),
    }
    for name, (text, _, _) in logs.items():
        (folder / f"{name}.log").write_text(text)
    made, _ = brought(cli, *(folder / f"{name}.log" for name in logs))
    metas = [store_of(folder).run_dir(run).meta() for run in made["runs"]]
    for meta, (name, (_, state, reason)) in zip(metas, logs.items(), strict=True):
        assert meta["state"] == state, name
        assert reason in meta["reason"], name


def test_a_log_that_was_cut_is_compared_and_its_unknown_end_is_said(folder: Path, cli: Cli) -> None:
    for repeat in range(3):
        (folder / f"{repeat}.log").write_text(megatron(50))
    brought(cli, *folder.glob("*.log"))
    code, out, _ = cli("compare", "last", "--output", "json")
    assert code == 0
    document = json.loads(out)
    assert len(document["sides"][0]["runs"]) == 3
    assert any("how these ended is not known" in note for note in document["notes"])


def test_the_output_is_the_log_byte_for_byte_and_events_carry_their_offsets(folder: Path, cli: Cli) -> None:
    data = b"\xff\xfe not text at all\r\n" + wire(5).encode() + b"the end, without a newline"
    (folder / "train.log").write_bytes(data)
    made, _ = brought(cli, folder / "train.log")
    run_dir = store_of(folder).run_dir(made["runs"][0])
    assert (run_dir.path / "stdout.log").read_bytes() == data
    steps = [e for e in run_dir.journal_events() if e.type == "iteration"]
    assert [data[e.offset :].startswith(b"@ekvi") for e in steps if e.offset is not None] == [True] * 5


def test_server_vendor_and_format_are_as_the_user_says(folder: Path, cli: Cli) -> None:
    both = megatron(10, 10) + "[rank0]:step: 1  loss: 9.9  grad_norm: 1.0  memory: 9.0GiB(6%)  tps: 700  mfu: 1%\n"
    (folder / "train.log").write_text(both)
    words = ("--server", "mi300x", "--vendor", "amd", "--format", "megatron")
    made, _ = brought(cli, folder / "train.log", *words)
    meta = store_of(folder).run_dir(made["runs"][0]).meta()
    assert (meta["server"], meta["vendor"]) == ("mi300x", "amd")
    code, out, _ = cli("show", made["runs"][0], "--output", "json")
    assert code == 0
    assert json.loads(out)["iterations"]["total"] == 10


@pytest.mark.parametrize(
    ("make", "words", "said"),
    [
        (None, (), "there is no file"),
        (b"\x7fELF\0\0\0 iteration 1/ 2 |", (), "is no log"),
        (b"", (), "holds no iteration of a known format"),
        (b"epoch 1 done, loss 3.2\n" * 100, (), f"Formats: {', '.join(LOG_FORMATS)}"),
        (b"Traceback (most recent call last):\nValueError: no data\n", (), "It says: ValueError: no data"),
        (wire().encode(), ("--format", "megatro"), "Did you mean 'megatron'?"),
        (wire().encode(), ("--format", "nemo"), "holds no iteration of a known format"),
        (wire().encode(), ("--telemetry", "nowhere.jsonl"), "there is no such file"),
        (wire().encode(), ("--telemetry", __file__), "is no telemetry of schema ekvi.gpu/1"),
    ],
)
def test_what_cannot_be_imported_is_refused_and_leaves_nothing(
    folder: Path, cli: Cli, make: bytes | None, words: tuple[str, ...], said: str
) -> None:
    (folder / "good.log").write_text(wire())
    if make is not None:
        (folder / "bad.log").write_bytes(make)
    code, out, err = cli("import", folder / "good.log", folder / "bad.log", *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err.replace("It says", "")
    left = [p for p in (folder.parent / "runs").rglob("*") if p.name != "groups"]
    assert left == []


def test_a_folder_and_a_log_twice_are_refused(folder: Path, cli: Cli) -> None:
    (folder / "a.log").write_text(wire())
    assert cli("import", folder)[0] == 2
    code, _, err = cli("import", folder / "a.log", folder / ".." / folder.name / "a.log")
    assert code == 2
    assert "named twice" in err


def test_an_unreadable_file_beside_the_log_is_left_out_and_said(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    (folder / "telemetry.jsonl").write_text("not\njson\n")
    made, err = brought(cli, folder / "train.log")
    assert "left out what lies beside it" in err
    assert len(made["runs"]) == 1


def test_what_a_killed_import_left_is_cleared_away_by_the_next(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(wire())
    left = folder.parent / "runs" / ".import-20260131-093000-imported-dead"
    (left / "half").mkdir(parents=True)
    assert "no runs yet" in cli("runs")[2]
    brought(cli, folder / "train.log")
    assert not left.exists()


@pytest.mark.parametrize("verb", ["attach", "fetch"])
def test_there_is_no_server_to_ask(folder: Path, cli: Cli, verb: str) -> None:
    (folder / "train.log").write_text(wire())
    brought(cli, folder / "train.log")
    code, _, err = cli(verb, "last")
    assert code == 2
    assert "was imported: there is no server to ask" in err


def test_an_imported_run_is_listed_replayed_and_removed(folder: Path, cli: Cli) -> None:
    (folder / "train.log").write_text(megatron(50))
    made, _ = brought(cli, folder / "train.log")
    _, out, err = cli("runs")
    assert made["runs"][0] in out
    assert "fetch" not in err, "nobody can look again"
    assert cli("replay", "last", "--speed", "1000")[0] == 0
    assert cli("rm", "last", "--yes")[0] == 0
    assert "no runs yet" in cli("runs")[2]


def test_what_the_agent_alone_samples_is_taken_with_the_log(tmp_path: Path, cli: Cli) -> None:
    made = subprocess.run([sys.executable, "-m", "cockpit.telemetry", "agent"], check=True, capture_output=True)
    (tmp_path / "agent.pyz").write_bytes(made.stdout)
    out = tmp_path / "train.telemetry.jsonl"
    argv = [sys.executable, str(tmp_path / "agent.pyz"), "sample", "--out", str(out), "--vendor", "cpu", "--hz", "50"]
    with subprocess.Popen(argv) as sampler:
        try:
            deadline = time.monotonic() + 20
            while not out.exists() or out.read_bytes().count(b"\n") < 40:
                assert time.monotonic() < deadline, "the agent wrote nothing"
                time.sleep(0.02)
            said = {"type": "iteration", "t": time.time(), "step": 1, "total": 1, "step_s": 0.4, "loss": 1.0}
            (tmp_path / "train.log").write_text(f"@ekvi {json.dumps(said)}\n")
        finally:
            sampler.terminate()
    document, err = brought(cli, tmp_path / "train.log")
    meta = Store(tmp_path / "runs").run_dir(document["runs"][0]).meta()
    assert err == ""
    assert meta["vendor"] == "cpu"
    assert meta["provenance"]["imported"]["samples"] > 5


def test_zones_are_quarter_hours_that_put_the_log_into_the_telemetry() -> None:
    assert zones(T0 + 5.75 * 3600, T0 + 5.75 * 3600 + 60, (T0 - 1, T0 + 61), 2.0) == [5.75 * 3600]
    assert zones(T0 + 100, T0 + 160, (T0, T0 + 50), 2.0) == []
