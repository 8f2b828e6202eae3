"""The first profile: asked for on a terminal, said in options, taken from SSH's configuration and from env files."""

from __future__ import annotations

import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.cli import main
from cockpit.config import load, validate_all
from cockpit.core.errors import ConfigError
from cockpit.engine.init import name_for
from cockpit.engine.init_sources import from_env, read_env, ssh_hosts
from tests.tui.terminal import Terminal

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyz0123456789"[:34]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without anything in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def profiles(home: Path) -> Path:
    return home / "config" / "ekvi-cockpit" / "profiles"


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main(list(words)) == code
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1, said
    return said


# --- options
def test_a_profile_from_options_is_valid_and_can_be_dry_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["init", "--yes", "--server", "a=local", "--server", "b=local", "--name", "mine", "--repeats", "2"]) == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert out == [str(profiles(home) / n) for n in ("server/a.yaml", "server/b.yaml", "mine.yaml")]
    assert validate_all("mine") == []
    assert load("mine").base.repeats == 2
    assert main(["run", "--profile", "mine", "--dry-run"]) == 0
    assert "a-default" in capsys.readouterr().out.replace("local-default", "a-default")


def test_nothing_is_overwritten_without_force(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init", "--yes", "--server", "a=local", "--name", "mine"]
    assert main(words) == 0
    before = (profiles(home) / "server" / "a.yaml").read_text()
    capsys.readouterr()
    changed = ["init", "--yes", "--server", "a=elsewhere", "--name", "other"]
    assert main(changed) == 2
    assert "there already" in capsys.readouterr().err
    assert (profiles(home) / "server" / "a.yaml").read_text() == before
    assert not (profiles(home) / "other.yaml").exists()
    assert main([*changed, "--force"]) == 0
    assert "elsewhere" in (profiles(home) / "server" / "a.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["init"], "asks its questions on a terminal"),
        (["init", "--yes"], "needs at least one --server"),
        (["init", "--yes", "--server", "a b"], "is no address"),
        (["init", "--yes", "--server", "../x=local"], "is no name for a file"),
        (["init", "--yes", "--server", "local", "--name", "a/b"], "is no name for a file"),
        (["init", "--yes", "--server", "local", "--model", "tin"], "Did you mean 'tiny'"),
        (["init", "--yes", "--server", "local", "--repeats", "0"], "at least 1"),
        (["init", "--from-ssh-config"], "names no host"),
        (["init", "--from-env", "/nowhere/local.env"], "cannot be read: No such file"),
        (["init", "--from-env", "x", "--from-ssh-config"], "exclude each other"),
        (["doctor"], "needs a profile"),
        (["doctor", "--profile", "duel-locl"], "Did you mean 'duel-local'"),
        (["servers", "test", "nobody"], "there is no server file 'nobody'"),
    ],
)
def test_one_sentence(home: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert sentence in refused(words, capsys)
    assert not profiles(home).exists()


def test_a_broken_server_file_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (profiles(home) / "server").mkdir(parents=True)
    (profiles(home) / "server" / "bad.yaml").write_text("adress: gpu7\n")
    said = refused(["servers", "test", "bad"], capsys)
    assert "bad.yaml" in said
    assert "address" in said


# --- ~/.ssh/config
def test_hosts_of_ssh_are_listed_and_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".ssh" / "config").write_text(
        "Include more.d/*\n# Host commented\nHost gpu7 *.example.org !no\n  HostName 10.0.0.7\n"
        "Host=box.lan\nMatch all\n"
    )
    (home / ".ssh" / "more.d").mkdir()
    (home / ".ssh" / "more.d" / "one").write_text('host "amd-1" gpu?\nInclude ~/.ssh/config\n')
    assert ssh_hosts() == ["amd-1", "gpu7", "box.lan"]
    assert main(["init", "--from-ssh-config"]) == 0
    assert capsys.readouterr().out.split() == ["amd-1", "gpu7", "box.lan"]
    assert not profiles(home).exists(), "a list writes nothing"
    assert main(["init", "--from-ssh-config", "gpu7", "box.lan"]) == 0
    assert yaml.safe_load((profiles(home) / "server" / "box.yaml").read_text()) == {"address": "box.lan"}
    capsys.readouterr()
    assert "Did you mean 'gpu7'" in refused(["init", "--from-ssh-config", "gpu77"], capsys)


@given(st.text(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_ssh_configuration_is_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any-config"
    path.write_text(text.replace("nclude", "nclud"), encoding="utf-8", errors="replace")
    assert all("*" not in name for name in ssh_hosts(path))


@given(st.sampled_from(["gpu", "root@10.0.0.7", "a.b.c", "x@é-ü.de", "[::1]", "..."]), st.lists(st.just("gpu")))
def test_names_for_servers_are_good_names(address: str, taken: list[str]) -> None:
    name = name_for(address, taken)
    assert name not in taken
    assert name.replace("-", "").replace("_", "").isalnum()


# --- env files
def test_env_files_become_two_servers_and_a_duel(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "local.env").write_text(
        "# where\nexport CUDA_SERVER='root@10.0.0.1'\nROCM_SERVER=amd@10.0.0.2  # second\n"
        "CUDA_PATH=/srv/duel/\nCOLOR=1\n"
    )
    (home / "server.env").write_text(f"HF_TOKEN={TOKEN}\n")
    assert main(["init", "--from-env", str(home / "local.env"), str(home / "server.env")]) == 0
    said = capsys.readouterr()
    assert "COLOR" in said.err
    assert "hf auth login" in said.err
    written = {p.name: p.read_text() for p in profiles(home).rglob("*.yaml")}
    assert yaml.safe_load(written["cuda.yaml"]) == {
        "address": "root@10.0.0.1", "vendor": "nvidia", "secrets": ["HF_TOKEN"], "workdir": "/srv/duel/.ekvi-cockpit",
    }  # fmt: skip
    assert yaml.safe_load(written["rocm.yaml"])["vendor"] == "amd"
    assert TOKEN not in said.out + said.err + "".join(written.values())
    assert validate_all("duel") == []
    found = load("duel")
    assert {n: c.training.backend for n, c in found.points[0].configs.items()} == {"cuda": "cuda", "rocm": "rocm"}
    assert {c.training.sequence_length for c in found.points[0].configs.values()} == {4096}  # what the model takes


def test_env_files_say_where_they_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "local.env"
    path.write_text(f"A=1\nthis is {TOKEN}\n")
    with pytest.raises(ConfigError, match=r"local\.env:2") as caught:
        read_env(path)
    assert TOKEN not in str(caught.value)
    path.write_text(f"HF_TOKEN='{TOKEN}\n")
    with pytest.raises(ConfigError, match="HF_TOKEN has a quote") as caught:
        read_env(path)
    assert TOKEN not in str(caught.value)
    path.write_text("CUDA_SERVR=x\n")
    with pytest.raises(ConfigError, match="neither CUDA_SERVER nor ROCM_SERVER"):
        from_env([path])


# --- a terminal
def test_the_guide_asks_tries_and_writes(home: Path) -> None:
    with Terminal("cockpit.cli", ["init"], env={"HOME": str(home)}) as terminal:
        for question, answer in (
            ("Name of the profile", "mine"),
            ("First server's address", "local"),
            ("Its name", "left"),
            ("Second server's address", "local"),
            ("Its name", "right"),
            ("container or as a plain process", ""),
            ("Model size?", "ti"),
            ("How many runs a server?", "none\r3"),
            ("Write this?", ""),
        ):
            at = len(terminal.output)
            terminal.until(question, since=max(0, terminal.output.rfind(b"\n", 0, at)))
            terminal.keys(answer + "\r")
        assert terminal.end() == 0
        assert b"it answers; vendor" in terminal.output
        assert b"A whole number" in terminal.output
    assert validate_all("mine") == []
    assert load("mine").base.repeats == 3
    assert load("mine").base.launcher.kind == "process"
    assert stat.S_IMODE((profiles(home) / "mine.yaml").stat().st_mode) & 0o022 == 0


def test_a_server_that_does_not_answer_is_asked_about(home: Path) -> None:
    with Terminal("cockpit.cli", ["init", "--name", "mine"], env={"HOME": str(home)}) as terminal:
        terminal.until("First server's address")
        terminal.keys("no-such-host.invalid\r")
        terminal.until("Go on with it anyway?")
        terminal.keys("\r")
        terminal.until("First server's address", since=terminal.output.rfind(b"anyway"))
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert b"Traceback" not in terminal.output
    assert not profiles(home).exists()


def test_the_end_of_input_leaves(home: Path) -> None:
    with Terminal("cockpit.cli", ["init"], env={"HOME": str(home)}) as terminal:
        terminal.until("Name of the profile")
        terminal.keys("\x04")
        assert terminal.end() == 130
    assert not profiles(home).exists()


def test_return_alone_goes_all_the_way_also_a_second_time(home: Path) -> None:
    for _ in range(2):
        with Terminal("cockpit.cli", ["init"], env={"HOME": str(home)}) as terminal:
            for question in (
                "Name of the profile", "First server's address", "Its name", "Second server's address", "container",
                "Model size?", "How many runs a server?", "Write this?",
            ):  # fmt: skip
                at = len(terminal.output)
                terminal.until(question, since=max(0, terminal.output.rfind(b"\n", 0, at)))
                terminal.keys("\r")
            assert terminal.end() == 0
    assert validate_all("first") == []
    assert validate_all("first-2") == []
