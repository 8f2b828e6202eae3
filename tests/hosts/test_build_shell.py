"""`build` and `shell` as a user calls them: on real terminals, over real sshd and dockerd."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.hosts.dockerd import PYTHON, Dockerd
from tests.hosts.engines import base_image, shelf
from tests.hosts.namespace import wait_for
from tests.tui.terminal import Terminal

pytestmark = pytest.mark.hosts

SECRET = "sesame-shell-5520"
BASE = "ekvi-test/shell-base:1"
PROFILE = """
defaults:
  - model: tiny
  - data: synthetic
  - training: cpu
  - runner: smoke
  - launcher: container
  - theme: nord
  - pricing: none
  - _self_
stage: train
servers:
  left:
    address: local
    vendor: cpu
    secrets: [SHELL_SECRET]
    env: {COLOUR: "light blue"}
    files: {FILE: /opt/notes.txt}
"""
LAUNCHER = """launcher:
  engine: docker
  ulimits: {memlock: null, stack: null}
"""


@pytest.fixture
def env(dockerd: Dockerd, tmp_path: Path) -> dict[str, str]:
    """A user's environment with the profile `near`, whose server is this machine with the tests' daemon."""
    profiles = tmp_path / "config" / "ekvi-cockpit" / "profiles"
    profiles.mkdir(parents=True)
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk\n")
    (profiles / "near.yaml").write_text(PROFILE.replace("FILE", str(notes)) + LAUNCHER)
    plain = PROFILE.replace("launcher: container", "launcher: process").replace("FILE: /opt", f"{notes}: given")
    (profiles / "plain.yaml").write_text(plain)
    return {
        **dockerd.env,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "EKVI_WORKDIR": str(tmp_path / "work"),
        "HOME": str(tmp_path),
        "SHELL_SECRET": SECRET,
    }


class Controlling(Terminal):
    """A terminal as a user has it: it tells the program of its size, and that it is gone."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], size: tuple[int, int]) -> None:
        self.output = b""
        self.started = time.perf_counter()
        self._fd, inner = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cockpit.cli", *args],
            stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm", **env},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )  # fmt: skip
        os.close(inner)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Close it, as a window is closed."""
        os.close(self._fd)
        self._fd = os.open(os.devnull, os.O_RDWR)


def shell(env: Mapping[str, str], *words: str, profile: str = "near") -> Controlling:
    return Controlling(["shell", "--profile", profile, *words], env, (90, 30))


def test_a_shell_in_a_container_has_what_a_run_has_and_leaves_nothing(
    env: dict[str, str], dockerd: Dockerd, tmp_path: Path
) -> None:
    with shell(env, f"launcher.image={PYTHON}") as terminal:
        terminal.keys("echo rea''dy\n")
        terminal.until("ready")
        wait_for(lambda: _size(terminal) == "30 90", 15, "the terminal in the container has another size")
        terminal.resize(77, 41)
        wait_for(lambda: _size(terminal) == "41 77", 15, "the terminal in the container keeps its size")
        terminal.keys("echo $COLOUR; cat $SHELL_SECRET_FILE; cat /opt/notes.txt; echo do''ne\n")
        terminal.until("done")
        for words in (b"light blue", SECRET.encode(), b"remember the milk"):
            assert words in terminal.output
        terminal.keys(
            "ls -d /ekvi/code/runners /ekvi/run/config.json; touch /ekvi/out/x /ekvi/cache/y; echo do''ne2\n"
        )
        terminal.until("done2")
        assert b"/ekvi/run/config.json" in terminal.output
        assert SECRET not in dockerd.run("inspect", *dockerd.run("ps", "-q").stdout.split()).stdout
        terminal.keys("exit 7\n")
        assert terminal.end() == 7
    assert dockerd.run("ps", "-aq").stdout == ""
    assert not list((tmp_path / "work" / "shells").iterdir())
    assert (tmp_path / "work" / "cache" / "y").exists()


def _size(terminal: Terminal) -> str:
    since = len(terminal.output)
    terminal.keys("stty size; echo o''k\n")
    terminal.until("ok\r\n", since=since)
    return terminal.output[since:].decode().splitlines()[-2].strip()


def test_a_closed_terminal_leaves_no_container_and_no_secret(
    env: dict[str, str], dockerd: Dockerd, tmp_path: Path
) -> None:
    with shell(env, f"launcher.image={PYTHON}") as terminal:
        terminal.keys("echo rea''dy\n")
        terminal.until("ready")
        assert dockerd.run("ps", "-q").stdout
        terminal.hang_up()
        terminal.process.wait(20)
    wait_for(lambda: dockerd.run("ps", "-aq").stdout == "", 20, "the container stays")
    wait_for(lambda: not list((tmp_path / "work" / "shells").iterdir()), 20, "the secret stays")


def test_a_command_in_place_of_a_shell_gives_its_exit_status(env: dict[str, str]) -> None:
    with shell(env, f"launcher.image={PYTHON}", "--", "sh", "-c", "echo one two; exit 5") as terminal:
        assert terminal.end() == 5
    assert b"one two" in terminal.output


def test_with_plain_processes_it_is_a_shell_with_a_runs_variables(env: dict[str, str], tmp_path: Path) -> None:
    script = "echo $COLOUR; cat $SHELL_SECRET_FILE given/notes.txt; pwd; python3 -c 'import runners; print(runners)'"
    with shell(env, "--", "sh", "-c", script, profile="plain") as terminal:
        assert terminal.end() == 0, terminal.output
    for words in (b"light blue", SECRET.encode(), b"remember the milk", f"{tmp_path}/work/shells/".encode()):
        assert words in terminal.output
    assert b"/code/runners" in terminal.output
    assert not list((tmp_path / "work" / "shells").iterdir())


def test_without_a_terminal_it_is_refused(env: dict[str, str]) -> None:
    done = _cockpit(env, "shell", "--profile", "near")
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


@pytest.fixture(scope="module")
def base(dockerd: Dockerd) -> str:
    base_image(dockerd, BASE, torch=True, shelves={"good": shelf()})
    return BASE


def _cockpit(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cockpit.cli", *words]
    return subprocess.run(
        argv,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_build_says_what_came_out_and_its_commands_do_the_same_by_hand(
    env: dict[str, str], dockerd: Dockerd, base: str
) -> None:
    words = ["--profile", "near", f"launcher.base_image={base}"]
    words += ["+launcher.build_args={PIP_NO_INDEX: '1', PIP_FIND_LINKS: /opt/good}"]
    built = _cockpit(env, "build", *words, "--output", "json")
    assert built.returncode == 0, built.stderr
    (row,) = json.loads(built.stdout)["servers"]
    assert row["image_id"] == dockerd.run("image", "inspect", "--format", "{{.Id}}", row["image"]).stdout.strip()
    assert (row["server"], row["error"]) == ("left", None)
    assert "left: " in built.stderr
    dry = _cockpit(env, "build", *words, "--dry-run")
    dockerd.run("rmi", "--no-prune", row["image"])
    by_hand = subprocess.run(
        ["sh", "-c", dry.stdout], env={**os.environ, **env}, capture_output=True, timeout=100, check=True
    )
    assert b"image.json" in by_hand.stdout
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    assert (
        dockerd.run("image", "inspect", "--format", label, row["image"]).stdout.strip() == row["image"].split(":")[1]
    )
    dockerd.run("rmi", row["image"])


def test_a_server_that_cannot_build_is_named_and_gives_3(env: dict[str, str]) -> None:
    done = _cockpit(
        env, "build", "--profile", "near", "launcher.base_image=127.0.0.1:9/none/here:1", "--output", "json"
    )
    assert done.returncode == 3
    (row,) = json.loads(done.stdout)["servers"]
    assert "the registry cannot be reached from there" in row["error"]
