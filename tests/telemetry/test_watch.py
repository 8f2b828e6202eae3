"""`ekvi-cockpit telemetry` as its users have it: on this machine, with a driver library of our own for GPUs."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.library import environment
from tests.fakes.nvml import LOST, FakeNvml
from tests.tui.terminal import Terminal

PATIENCE_S = 30.0
Lines = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def servers(tmp_path: Path) -> None:
    """Server files: this machine with GPUs and without, one where nothing listens, one that is refused."""
    folder = tmp_path / "xdg-config" / "ekvi-cockpit" / "profiles" / "server"
    folder.mkdir(parents=True)
    work = f"workdir: {tmp_path / 'work'}\n"
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port, and nobody answers
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (folder / "here.yaml").write_text(f"address: local\nvendor: cpu\n{work}")
    (folder / "gpus.yaml").write_text(f"address: local\nvendor: nvidia\n{work}")
    (folder / "off.yaml").write_text(f"address: 127.0.0.1\nvendor: cpu\nssh:\n  port: {port}\n{work}")
    (folder / "nopython.yaml").write_text(f"address: local\nvendor: cpu\npython: /nowhere/python3\n{work}")


def run(*words: object, env: Mapping[str, str] = {}, **kw: Any) -> subprocess.CompletedProcess[str]:
    """One `telemetry` to its end."""
    argv = [sys.executable, "-m", "cockpit.cli", "telemetry", *map(str, words)]
    return subprocess.run(
        argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **kw
    )


def said(text: str) -> Lines:
    return [json.loads(line) for line in text.splitlines()]


class Watch:
    """A `telemetry --output json` that goes on until the test has seen enough."""

    def __init__(self, words: Sequence[object], env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "cockpit.cli", "telemetry", *map(str, words), "--output", "json"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=pipe, stderr=pipe, text=True)
        self.lines: Lines = []

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line from here on that fits."""
        assert self.process.stdout is not None
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            line: dict[str, Any] = json.loads(self.process.stdout.readline())
            self.lines.append(line)
            if fits(line):
                return line
        raise AssertionError(f"it never came; the last: {self.lines[-1]}")

    def tick(self, **of: Any) -> dict[str, Any]:
        """The next tick with GPUs whose first one has these values."""
        return self.until(
            lambda line: (
                line["type"] == "tick"
                and bool(line["devices"])
                and all(line["devices"][0].get(k) == v for k, v in of.items())
            )
        )

    def stop(self) -> tuple[int, str]:
        """Ctrl-C; its exit code and what it said on stderr."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        self.lines += said(out)
        return self.process.returncode, err


@contextmanager
def watching(*words: object, env: Mapping[str, str] = {}) -> Iterator[Watch]:
    watch = Watch(words, env)
    try:
        yield watch
    finally:
        if watch.process.poll() is None:
            watch.process.kill()
        watch.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def driver(tmp_path: Path, nvml_library: Path) -> FakeNvml:
    """Two H200 under load."""
    return FakeNvml(tmp_path / "driver", nvml_library, gpus=2)


# -- lines


def test_a_machine_without_gpus_tells_of_its_cpu_until_the_time_is_over() -> None:
    done = run("--servers", "here", "--hz", "20", "--seconds", "1.5", "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = said(done.stdout)
    assert {line["server"] for line in lines} == {"here"}
    assert lines[0] | {"t_recv": 0} == {"server": "here", "t_recv": 0, "type": "state", "state": "live", "why": None}
    assert lines[1]["type"] == "hello"
    assert [lines[1]["backend"], lines[1]["devices"]] == ["cpu", []]
    ticks = [line for line in lines if line["type"] == "tick"]
    assert [tick["seq"] for tick in ticks] == list(range(len(ticks)))
    assert len(ticks) >= 5
    assert any(tick.get("host", {}).get("mem_used", 0) > 0 for tick in ticks)
    clocks = [line for line in lines if line["type"] == "clock"]
    assert clocks
    assert all(abs(c["offset_s"]) <= c["error_s"] for c in clocks), "it is this machine's own clock"


def test_gpus_are_read_by_the_driver_and_their_values_arrive(driver: FakeNvml) -> None:
    env = environment(driver.program)
    with watching("--servers", "gpus", "--hz", "20", env=env) as watch:
        hello = watch.until(lambda line: line["type"] == "hello")
        assert (hello["backend"], len(hello["devices"])) == ("nvml", 2)
        assert hello["devices"][0]["model"] == "NVIDIA H200"
        first = watch.tick(util=0.97)["devices"]
        assert [d["index"] for d in first] == [0, 1]
        assert first[0]["power_w"] == pytest.approx(433.0)
        driver.set(0, util=(12, 3))
        watch.tick(util=0.12)
        assert watch.stop() == (0, "")


def test_a_profile_names_the_servers_and_words_change_it() -> None:
    done = run(
        "--profile", "duel-local", "telemetry.hz=50", "--servers", "left", "--seconds", "1", "--output", "json"
    )
    assert done.returncode == 0, done.stderr
    (hello,) = [line for line in said(done.stdout) if line["type"] == "hello"]
    assert (hello["server"], hello["hz"]) == ("left", 50.0)


def test_a_reader_that_goes_away_ends_it_in_order() -> None:
    with watching("--servers", "here", "--hz", "50") as watch:
        watch.until(lambda line: line["type"] == "tick")
        assert watch.process.stdout is not None
        watch.process.stdout.close()
        assert watch.process.wait(PATIENCE_S) == 0
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == ""
        watch.process.stdout = None


def test_in_a_pipe_it_is_a_line_a_second_for_each_gpu(driver: FakeNvml) -> None:
    done = run("--servers", "gpus", "--seconds", "2", env=environment(driver.program))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert 2 <= len(lines) <= 6
    assert re.match(r"\d\d:\d\d:\d\d gpus gpu=0", lines[0])
    assert any("power=433W" in line and "temp=68°C_mem" in line for line in lines)


def test_a_gpu_that_is_lost_is_said_and_not_only_unknown(driver: FakeNvml) -> None:
    driver.refuse_all(LOST, after=12)
    done = run("--servers", "gpus", "--seconds", "4", env=environment(driver.program))
    assert "the GPU is lost" in done.stderr
    assert "gpus: nvml does not answer any more: " in done.stderr
    assert re.search(r"gpu=0 .*power=n/a", done.stdout)


# -- alarms


def test_heat_memory_errors_and_xids_are_told_once_each_way(driver: FakeNvml) -> None:
    env = environment(driver.program)
    with watching("--servers", "gpus", "--hz", "20", "--alarm-temp", "80", env=env) as watch:
        watch.tick()
        driver.set(1, temp_mem=93)
        hot = watch.until(lambda line: line["type"] == "alarm")
        assert (hot["kind"], hot["index"], hot["over"]) == ("heat", 1, False)
        assert hot["text"] == "memory sensor at 93 °C, the limit is 80"
        driver.set(1, temp_mem=60)
        assert watch.until(lambda line: line["type"] == "alarm")["over"] is True
        driver.xid(0, 79)
        xid = watch.until(lambda line: line["type"] == "alarm")
        assert (xid["kind"], xid["index"]) == ("xid", 0)
        assert "79" in xid["text"]


# -- servers that are not there


def test_one_that_does_not_answer_is_tried_on_while_the_other_is_watched() -> None:
    done = run("--servers", "off,here", "--hz", "20", "--seconds", "2", "--output", "json")
    assert done.returncode == 0
    assert "off is away: 127.0.0.1 refuses connections" in done.stderr
    assert done.stderr.count("off is away") == 1
    lines = said(done.stdout)
    assert [line["state"] for line in lines if line["server"] == "off"] == ["away"]
    assert any(line["type"] == "tick" for line in lines if line["server"] == "here")


def test_one_that_refuses_is_told_at_once_and_makes_it_exit_3() -> None:
    done = run("--servers", "nopython,here", "--hz", "20", "--seconds", "2", "--output", "json")
    assert done.returncode == 3
    assert done.stderr.count("nopython cannot be watched: ") == 1
    assert any(line["type"] == "tick" for line in said(done.stdout))
    alone = run("--servers", "nopython")
    assert alone.returncode == 3, "it ends by itself: there is nothing to wait for"


def test_where_none_was_reached_it_exits_3() -> None:
    assert run("--servers", "off", "--seconds", "1").returncode == 3


def test_an_agent_that_is_killed_is_started_again(tmp_path: Path) -> None:
    import psutil

    with watching("--servers", "here", "--hz", "20") as watch:
        first = watch.until(lambda line: line["type"] == "hello")
        watch.until(lambda line: line["type"] == "tick")
        agents = [c for c in psutil.Process(watch.process.pid).children(recursive=True) if "stream" in c.cmdline()]
        assert agents
        for agent in agents:
            agent.kill()
        assert watch.until(lambda line: line["type"] == "state")["state"] == "away"
        second = watch.until(lambda line: line["type"] == "hello")
        assert second["agent_id"] != first["agent_id"]
        code, err = watch.stop()
        assert code == 0
        assert "here is back." in err


def test_one_that_cannot_start_its_agent_for_a_while_is_not_given_up(tmp_path: Path) -> None:
    import psutil

    python, broken = tmp_path / "python3", tmp_path / "broken"
    python.write_text(
        f'#!/bin/sh\n[ -e {broken} ] && rm {broken} && echo no room >&2 && exit 1\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    there = tmp_path / "xdg-config" / "ekvi-cockpit" / "profiles" / "server" / "boots.yaml"
    there.write_text(f"address: local\nvendor: cpu\npython: {python}\nworkdir: {tmp_path / 'work'}\n")
    with watching("--servers", "boots", "--hz", "20") as watch:
        watch.until(lambda line: line["type"] == "tick")
        broken.touch()
        for agent in psutil.Process(watch.process.pid).children(recursive=True):
            if "stream" in agent.cmdline():
                agent.kill()
        states = [watch.until(lambda line: line["type"] == "state")["state"] for _ in range(2)]
        code, _ = watch.stop()
    assert (states, code, broken.exists()) == (["away", "live"], 0, False)


# -- records


def test_a_record_plays_again_line_by_line(tmp_path: Path, driver: FakeNvml) -> None:
    kept = tmp_path / "kept.jsonl"
    words = ("--servers", "gpus,here", "--hz", "10", "--seconds", "2", "--record", kept, "--output", "json")
    live = run(*words, env=environment(driver.program))
    assert live.returncode == 0, live.stderr
    assert kept.stat().st_mode & 0o777 == 0o600
    again = run("--replay", kept, "--speed", "20", "--output", "json")
    assert (again.returncode, again.stderr) == (0, "")

    def own(text: str) -> Lines:
        return [{k: v for k, v in o.items() if k != "t_recv"} for o in said(text) if o["type"] != "state"]

    assert own(again.stdout) == own(live.stdout)
    assert len(own(again.stdout)) > 20
    there = run(*words, env=environment(driver.program))
    assert there.returncode == 2
    assert "is there already" in there.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read"),
        ("", "holds no line of a watch"),
        ("{}\n", ":1 is no line of a recorded watch"),
        ("x" * (5 << 20), ":1 is no line of a recorded watch"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "kept.jsonl"
    if text is not None:
        path.write_text(text)
    done = run("--replay", path)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


# -- a terminal


def test_on_a_terminal_it_is_a_table_that_follows_the_size_and_leaves_whole(driver: FakeNvml) -> None:
    env = {**environment(driver.program), "LINES": "", "COLUMNS": ""}
    env = {k: v for k, v in env.items() if v}
    with Terminal("cockpit.cli", ["telemetry", "--servers", "gpus,here"], size=(130, 30), env=env) as terminal:
        terminal.until("0 NVIDIA H200")
        terminal.until("ecc")  # a column that only a wide terminal has
        terminal.until("Ctrl-C leaves")
        mark = len(terminal.output)
        fcntl.ioctl(terminal._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("0 H200", since=mark)  # where it is narrow the make has no room
        mark = len(terminal.output)
        terminal.until("Ctrl-C leaves", since=mark)
        assert b" ecc" not in terminal.output[mark:]
        driver.xid(1, 63)
        terminal.until("ALARM gpus GPU 1")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l"), "the cursor is back"
        assert b"Traceback" not in terminal.output


# -- OpenMetrics


def scrape(port: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        body: str = answer.read().decode()
    return body


def samples(families: Any) -> dict[tuple[str, str, str], float]:
    return {
        (s.name, s.labels.get("server", ""), s.labels.get("gpu", "")): s.value for f in families for s in f.samples
    }


def test_a_scraper_reads_it_in_both_formats(driver: FakeNvml) -> None:
    from prometheus_client.openmetrics import parser as openmetrics_parser
    from prometheus_client.parser import text_string_to_metric_families as plain

    openmetrics: Callable[[str], Any] = openmetrics_parser.text_string_to_metric_families
    words = ("--servers", "gpus,off", "--hz", "20", "--serve", "0")
    with watching(*words, env=environment(driver.program)) as watch:
        assert watch.process.stderr is not None
        port = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", watch.process.stderr.readline())
        assert port is not None
        watch.until(
            lambda line: line["type"] == "tick" and "energy_j" in line["devices"][0] if line.get("devices") else False
        )
        text = scrape(port[1])
        strict = scrape(port[1], "application/openmetrics-text; version=1.0.0")
        assert strict.rstrip().endswith("# EOF")
        for found in (samples(plain(text)), samples(openmetrics(strict))):
            assert found["ekvi_server_up", "gpus", ""] == 1
            assert found["ekvi_server_up", "off", ""] == 0
            assert found["ekvi_gpu_utilization_ratio", "gpus", "0"] == pytest.approx(0.97)
            assert found["ekvi_gpu_power_watts", "gpus", "1"] == pytest.approx(433.0)
            assert found["ekvi_gpu_energy_joules_total", "gpus", "0"] == pytest.approx(987_654.321)
            assert not any(name == "ekvi_gpu_fan_ratio" for name, _, _ in found), "it has no fan: never 0"
        (throttle,) = [f for f in openmetrics(strict) if f.name == "ekvi_gpu_throttle"]
        assert {s.labels["reason"]: s.value for s in throttle.samples if s.labels["gpu"] == "0"}["power"] == 1
        assert watch.process.poll() is None
        driver.refuse_all(status=15)
        watch.until(lambda line: line["type"] == "tick" and any(d.get("stale_s") for d in line["devices"]))
        assert ("ekvi_gpu_power_watts", "gpus", "0") not in samples(plain(scrape(port[1]))), "old, so not shown"


def test_a_port_that_is_taken_an_address_that_is_none_and_a_missing_library_are_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run("--servers", "here", "--serve", str(other.getsockname()[1]))
        assert taken.returncode == 2
        assert "Address already in use" in taken.stderr
    for where in ("127.0.0.1:port", "127.0.0.1:70000", "nosuch.invalid:9464"):
        wrong = run("--servers", "here", "--serve", where)
        assert wrong.returncode == 2, where
        assert "Traceback" not in wrong.stderr
    code = "import sys; sys.modules['prometheus_client'] = None; from cockpit.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "telemetry", "--servers", "here", "--serve", "0"]
    bare = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert bare.returncode == 2
    assert "pip install 'ekvi-cockpit[serve]'" in bare.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "needs to know which servers"),
        (("--servers", "nosuch"), "nosuch"),
        (("--servers", "here", "--hz", "0"), "it must be above 0"),
        (("--servers", "here", "--seconds", "-1"), "it must be above 0"),
        (("--replay", "x", "--record", "y"), "--record has no place beside it"),
        (("--servers", ","), "names no server"),
    ],
)
def test_words_that_make_no_sense_are_usage_errors(words: tuple[str, ...], why: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
