"""The command line of the runners: what it takes, and that each foreseen error is one sentence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import __main__ as command
from runners.__main__ import Arguments, parse
from runners.errors import ConfigurationError, _no_megatron
from runners.process import Process
from tests.runners.support import ROOT, Place, Result

words = st.text("abcdefgh._", min_size=1).map(lambda key: f"k{key}")


@given(st.lists(st.tuples(words, st.text("abc=.,[]'\"-", max_size=8)).map("=".join)))
def test_other_words_are_handed_to_hydra_unchanged_and_in_order(overrides: list[str]) -> None:
    assert parse(["stage=data", *overrides]) == Arguments(stage="data", overrides=tuple(overrides))


@pytest.mark.parametrize("argv", [["--config", "a.json", "stage=wrap"], ["stage=wrap", "--config=a.json"]])
def test_config_is_taken_with_and_without_an_equals_sign(argv: list[str]) -> None:
    assert parse(argv) == Arguments(stage="wrap", config="a.json")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--config"], "--config"),
        (["train"], "'train'"),
        (["--verbose=1"], "--verbose=1"),
        (["--config", "a.json", "training.seed=1"], "training.seed=1"),
        (["purge.dry_run=yes"], "purge.dry_run='yes'"),
        (["--multirun", "--config", "a.json"], "--multirun does not apply"),
        (["--multirun", "stage=purge", "purge.dry_run=true"], "not of --multirun"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(argv: list[str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse(argv)


def failed_plainly(result: Result, rc: int) -> str:
    """The one sentence of a foreseen error: on stderr and as a diagnostic, without a traceback."""
    assert result.rc == rc, result.err
    (line,) = result.err.strip().splitlines()
    assert line.startswith("error: ")
    assert result.diagnostic("error")["message"] == line.removeprefix("error: ")
    return line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Invalid JSON"),
        ('{"trainings": {}}', "trainings: Extra inputs"),
        ('{"training": {"train_iters": 0}}', "training.train_iters: "),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_sentence(place: Place, text: str, told: str) -> None:
    place.command({})
    (place.folder / "bad.json").write_text(text)
    command = [sys.executable, "-m", "runners", "--config", "bad.json"]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert told in failed_plainly(Result(done.returncode, done.stdout, done.stderr), 2)


def test_an_unknown_stage_names_the_known_ones(place: Place) -> None:
    assert "data, calibrate, train, wrap, purge, all" in failed_plainly(place.run({}, "stage=tran"), 2)


def test_half_a_launcher_says_what_is_missing(place: Place) -> None:
    told = failed_plainly(place.run({}, RANK="0", WORLD_SIZE="2"), 2)
    assert "MASTER_ADDR and MASTER_PORT not: no process group can form" in told


def test_torchrun_s_processes_take_no_sweep(place: Place) -> None:
    place.folder.mkdir(parents=True)
    env = place.environment(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    command = [sys.executable, "-m", "runners", "--multirun", "training.seed=1,2"]
    done = subprocess.run(command, cwd=place.folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "this is one of torchrun's" in failed_plainly(Result(done.returncode, done.stdout, done.stderr), 2)


def test_help_names_every_stage_and_option() -> None:
    command = [sys.executable, "-m", "runners", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for word in ("data", "calibrate", "train", "wrap", "purge", "all", "--config", "--multirun", "EKVI_OUT"):
        assert word in done.stdout


def test_a_command_runner_is_not_started_here(place: Place) -> None:
    told = failed_plainly(place.run({"runner": {"name": "command", "argv": ["true"]}}), 2)
    assert "runner.name=command is started by the launcher itself" in told


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with pydantic and what it needs, and nothing else that pip has installed."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (folder / source.name).symlink_to(source)
    return folder


@pytest.mark.parametrize(
    ("runner", "stage", "missing"),
    [("megatron", "train", "PyTorch"), ("smoke", "train", "PyTorch"), ("megatron", "data", "tokenizers")],
)
def test_a_missing_stack_says_which_extra_to_install(
    place: Place, bare: Path, runner: str, stage: str, missing: str
) -> None:
    command = place.command({"runner": {"name": runner}}, f"stage={stage}")
    command[1:1] = ["-S"]
    env = place.environment(PYTHONPATH=f"{ROOT}:{bare}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    told = failed_plainly(Result(done.returncode, done.stdout, done.stderr), 2)
    assert f"{missing}" in told
    assert "pip install 'ekvi-cockpit[train]'" in told


def test_a_platform_without_a_wheel_says_what_works_there() -> None:
    (told,) = _no_megatron("Darwin", "arm64")
    assert "no wheel for Darwin arm64" in told
    for works in ("demo", "import", "compare", "remote servers"):
        assert works in told


def test_a_platform_with_a_wheel_says_to_install_it() -> None:
    assert "ekvi-cockpit[train]" in _no_megatron("Linux", "x86_64")[0]


def test_without_config_the_words_are_composed(place: Place) -> None:
    place.folder.mkdir(parents=True)
    command = [sys.executable, "-m", "runners", "stage=data", "runner=smoke"]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Result(0, done.stdout, "").stages == [("data", "start"), ("data", "skipped")]


def test_a_resolved_configuration_needs_neither_hydra_nor_yaml(place: Place) -> None:
    command = place.command({"runner": {"name": "smoke"}}, "stage=data")
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, env=place.environment(), capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported
    assert not imported & {"hydra", "omegaconf", "yaml", "torch", "numpy", "megatron", "tokenizers"}


@pytest.mark.parametrize("code", [0, 2])
def test_with_torch_loaded_a_process_ends_without_the_interpreter_s_clean_up(code: int) -> None:
    program = (
        "import atexit, sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
        "atexit.register(print, 'cleaned up')\n"
        "from runners.__main__ import leave\n"
        "print('last word', end='')\n"
        f"leave({code})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (code, "last word")


@pytest.mark.parametrize(
    ("rank", "said"),
    [(0, ["error: no room."]), (3, []), (8, ["error: rank 8: no room."]), (9, [])],
)
def test_what_every_rank_sees_is_said_once_and_what_one_node_sees_by_its_first(
    rank: int, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "YIELD_S", 0.0)  # no launcher ends this process meanwhile
    process = Process(rank=rank, world=16, local_rank=rank % 8, launched=True)
    command.report(ConfigurationError("no room.", every_rank=True), process)
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.train
@pytest.mark.parametrize(("collective", "fails", "left"), [("nccl", True, 0), ("nccl", False, 1), ("gloo", True, 1)])
def test_after_an_error_nccl_s_leave_is_not_waited_for(
    collective: str, fails: bool, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    from runners import group

    calls: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_a, **_o: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("left"))

    def work() -> None:
        with group.joined(Process(), collective):
            if fails:
                raise ConfigurationError("no room.")

    with pytest.raises(ConfigurationError) if fails else nullcontext():
        work()
    assert len(calls) == left
