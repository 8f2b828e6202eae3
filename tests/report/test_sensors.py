"""The sensors in a terminal: unknown is never 0, old is marked, what a server sends moves no cursor."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from cockpit.core.gpu import MachineNow
from cockpit.report import sensors

HELLO = {
    "type": "hello",
    "backend": "nvml",
    "devices": [{"index": 0, "model": "NVIDIA H200", "mem_total": 150 << 30}, {"index": 1, "model": "NVIDIA H200"}],
}


@dataclass
class Machine:
    name: str = "left"
    state: str = "live"
    why: str | None = None
    now: MachineNow = field(default_factory=MachineNow)

    def take(self, *lines: dict[str, Any]) -> Machine:
        for line in lines:
            self.now.take(line, 0.0)
        return self


def tick(at_s: float, *devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "tick", "seq": 0, "t_mono_ns": int(at_s * 1e9), "t_wall_ns": 1, "devices": list(devices), **more}


def shown(machine: Machine, width: int = 80, now: float = 0.0) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(sensors.table([machine], now, width))
    return out.getvalue()


FULL = {
    "index": 0,
    "util": 0.97,
    "mem_used": 75 << 30,
    "power_w": 412.3,
    "temp_edge_c": 60,
    "temp_mem_c": 71,
    "clk_sm_mhz": 1755,
    "throttle": ["power"],
}


@pytest.mark.parametrize("width", [80, 100, 124, 200])
def test_a_row_a_gpu_fits_the_terminal(width: int) -> None:
    text = shown(Machine().take(HELLO, tick(1, FULL, {"index": 1, "util": 0.0})), width)
    for word in ("97 %", "75.0/150 GiB", "412 W", "71 °C mem", "1755 MHz", "power"):
        assert word in text, text
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(("name", "width"), [("left", 50), ("nvidia-h200-node-eu-west-01", 80), ("left", 66)])
def test_where_it_is_narrow_columns_go_and_no_figure_is_cut(name: str, width: int) -> None:
    old = tick(31, {"index": 0, "util": 0.5})
    row = shown(Machine(name).take(HELLO, tick(1, FULL), old), width, 0.0).splitlines()[1]
    assert "50 %" in row
    assert "412 W (30 s old)" in row
    assert "71 °C mem" in row
    assert row.split()[0].endswith(name[-3:]), "servers differ at their ends"
    for cell in ("75.0/150 GiB", "1755 MHz"):
        assert cell in row or cell[:4] not in row
    assert len(row) <= width


@pytest.mark.parametrize(
    ("model", "width", "says"),
    [("AMD Instinct MI300X", 80, "0 MI300X "), ("AMD Instinct MI300X OAM", 130, "MI300X OAM "),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 130, "NVIDIA RTX PRO 6000 Bla…")],
)  # fmt: skip
def test_a_model_is_not_cut_into_another(model: str, width: int, says: str) -> None:
    assert says in shown(
        Machine().take({"type": "hello", "devices": [{"index": 0, "model": model}]}, tick(1, FULL)), width
    )


def test_what_is_not_known_is_said_and_is_not_zero() -> None:
    row = shown(Machine().take(HELLO, tick(1, {"index": 1, "util": None}))).splitlines()[2]
    assert "n/a" in row
    assert "0 %" not in row


def test_an_old_value_is_marked_with_its_age() -> None:
    machine = Machine().take(HELLO, tick(1, FULL), tick(31, {"index": 0, "util": 0.5}))
    assert "412 W (30 s old)" in shown(machine, 200)


def test_a_cpu_server_shows_its_host() -> None:
    machine = Machine().take({"type": "hello", "devices": []}, tick(1, host={"cpu_util": 0.25, "mem_used": 2 << 30}))
    text = shown(machine)
    assert "cpu" in text
    assert "25 %" in text


def test_names_of_a_server_move_no_cursor_and_are_no_markup() -> None:
    device = {"index": 0, "model": "\x1b[31mred[/b]"}
    text = shown(Machine().take({"type": "hello", "devices": [device]}, tick(1, FULL)), 120)
    assert "\x1b" not in text
    assert "red[/b]" in text


def test_a_pipe_gets_a_line_a_gpu() -> None:
    machine = Machine().take(HELLO, tick(1, FULL, {"index": 1}))
    first, second = sensors.plain(machine, 0.0)
    assert first.startswith("left gpu=0 model=NVIDIA_H200 util=97% memory=75.0/150GiB")
    assert "temp=71°C_mem" in first.split()
    assert "power=n/a" in second
    assert sensors.plain(Machine(state="away", why="it does not answer."), 0.0) == ["left: away: it does not answer."]


def test_a_machine_without_sensors_says_what_was_tried() -> None:
    sources = [{"name": "nvml", "ok": False, "text": "libnvidia-ml.so.1 is not there"}]
    (text,) = sensors.words(Machine().take({"type": "hello", "devices": [], "sources": sources}))
    assert text == "left: no GPU values. nvml: libnvidia-ml.so.1 is not there"


def test_gpus_that_are_not_there_are_said() -> None:
    hello = {"type": "hello", "backend": "nvml", "devices": [], "sources": [{"name": "nvml", "ok": True}]}
    assert sensors.words(Machine().take(hello)) == ["left: no GPU values. nvml knows none of the chosen GPUs"]


def test_a_clock_that_is_off_is_told_and_one_within_its_error_is_not() -> None:
    off = {"type": "clock", "t_wall_ns": 1, "offset_s": -90.0, "error_s": 0.01, "rtt_s": 0.02}
    assert sensors.words(Machine().take(off)) == ["left: its clock is 90.0 s behind this one's"]
    assert sensors.words(Machine().take({**off, "offset_s": 0.02})) == []
