"""The servers' panel: what is shown of GPUs as their lines come, old, missing and shared values among them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cockpit.core.gpu import MachineNow
from cockpit.report.themes import bundled_default
from cockpit.tui.feed import load_of
from cockpit.tui.theming import Look
from cockpit.tui.widgets import gpus
from tests.tui.scripted import Script, planned
from tests.tui.support import screen, shown, until

_GIB = 2**30
_HOT: dict[str, Any] = {
    "util": 0.97,
    "mem_used": 61 * _GIB,
    "power_w": 640.0,
    "temp_edge_c": 51.0,
    "temp_hot_c": None,
    "temp_mem_c": 66.0,
    "clk_sm_mhz": 1755.0,
    "throttle": [],
}
_NONE: dict[str, Any] = dict.fromkeys(_HOT)


class Gpus(Script):
    """One server whose lines a test writes, stamped by a clock that it moves."""

    def __init__(self) -> None:
        super().__init__(planned(["h200"], 1))
        self.at_s, self.seq = 1000.0, 0

    def line(self, kind: str, **fields: Any) -> None:
        """One line of the server."""
        at = int(self.at_s * 1e9)
        self.observer.tick(self.name("h200"), {"type": kind, "t_mono_ns": at, "t_wall_ns": at, **fields})

    def greet(self, count: int, backend: str = "nvml", **more: Any) -> None:
        """The hello of a machine with `count` GPUs."""
        devices = [{"index": i, "model": "H200", "mem_total": 139 * _GIB, **more} for i in range(count)]
        self.line("hello", schema="ekvi.gpu/1", backend=backend, vendor="nvidia", devices=devices)

    def sample(self, *devices: dict[str, Any], **more: Any) -> None:
        """A tick, a tenth of a second after the one before."""
        self.at_s += 0.1
        self.seq += 1
        self.line("tick", seq=self.seq, devices=[{"index": i, **d} for i, d in enumerate(devices)], **more)


async def test_a_gpus_line_names_its_hottest_sensor_and_why_it_is_slowed_down() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(1)
        script.sample({**_HOT, "throttle": ["thermal", "idle"], "tensor": 0.43})
        await until(pilot, "61.0/139 GiB 640 W 66 °C mem throttle thermal tensor 43% 1755 MHz")
        assert "nvml · 0 s old" in shown(app)


async def test_a_slow_field_stays_and_says_its_age_when_it_is_old() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (_, pilot):
        await until(pilot, "no sample yet")
        script.greet(1)
        script.sample({**_HOT, "tensor": 0.43})
        script.sample({**_HOT, "power_w": 641.0})
        await until(pilot, "641 W 66 °C mem tensor 43% 1755")
        script.at_s += 20
        script.sample({**_HOT, "power_w": 642.0})
        await until(pilot, "642 W 66 °C mem tensor 43% (20 s)")


async def test_a_machine_without_gpus_keeps_what_its_host_said_before() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(0, backend="cpu")
        script.sample(host={"cpu_util": 0.31, "mem_used": 3 * _GIB, "mem_total": 16 * _GIB, "power_w": 87.0})
        script.sample()
        script.sample()
        await until(pilot, "31%")
        assert "mem 3.0/16 GiB 87 W" in shown(app)


async def test_what_is_not_known_is_never_shown_as_nothing() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(1, mem_total=None)
        script.sample(_NONE)
        await until(pilot, "util n/a")
        text = shown(app)
        assert "util n/a mem n/a power n/a temp n/a throttle n/a" in text
        assert "gpu n/a vram n/a power n/a (the driver gives none)" in text
        assert " 0%" not in text.split("servers")[1].split("log")[0]


async def test_a_gpu_that_does_not_answer_is_marked_and_comes_back() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(2)
        script.sample(_HOT, {**_NONE, "stale_s": 2.4})
        await until(pilot, "1 stale 2 s")
        assert "nvml · stale 2 s" in shown(app)
        script.sample(_HOT, _HOT)
        await until(pilot, lambda: "stale" not in shown(app))


async def test_a_sum_says_of_how_many_gpus_it_is_and_a_shared_sensor_is_not_missed() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(2)
        script.sample(_HOT, {**_HOT, "power_w": None})
        await until(pilot, "640 W (1 of 2 GPUs)")
        script.greet(2, unavailable={"power_w": ["shared", "the package's first die speaks for both"]})
        script.sample(_HOT, {**_HOT, "power_w": None})
        await until(pilot, "power shared")
        assert "(1 of 2 GPUs)" not in shown(app)


async def test_a_thinned_sample_shows_its_means() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (_, pilot):
        await until(pilot, "no sample yet")
        script.greet(1)
        thinned = {**_HOT, "power_w": 500.0, "min": {"power_w": 80.0}, "max": {"power_w": 690.0}, "throttled": 0.5}
        script.sample(thinned, from_seq=0, n=10)
        await until(pilot, "500 W 66 °C mem")


async def test_news_of_the_sensors_stand_in_the_log_and_unknown_fields_do_not() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(2)
        script.line("err", source="nvml", index=0, field="fan", code="not_supported", text="no fan here")
        script.line("err", source="nvml", code="blocked", text="nvml has not answered for 1 s")
        script.line("err", source="nvml", code="recovered", text="nvml answers\nagain\x1b[2J")
        script.line("err", source="nvml", index=1, code="event", event="xid", value=79, text="Xid 79: off the bus")
        script.greet(2, backend="nvidia-smi")
        await until(pilot, "h200: sensors are read by nvidia-smi now, before by nvml")
        text = shown(app)
        assert "h200: nvml has not answered for 1 s" in text
        assert "h200: nvml answers again" in text
        assert "h200 GPU 1: Xid 79: off the bus" in text
        assert "no fan here" not in text
        assert [level for level, _ in app.feed.notes] == ["warning", "info", "error", "warning"]


async def test_what_is_missing_is_said_until_samples_come_again() -> None:
    script = Gpus()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(1)
        script.sample(_HOT)
        script.line("gap", from_seq=2, to_seq=90, reason="the agent was away")
        await until(pilot, "nvml · the agent was away")
        script.sample(_HOT)
        await until(pilot, lambda: "the agent was away" not in shown(app))


@pytest.mark.parametrize("count", [8, 16])
async def test_gpus_that_have_no_room_for_a_line_each_stand_as_cells(count: int) -> None:
    script = Gpus()
    async with screen(script, size=(80, 24)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(count)
        loads = [0.30 + i / 100 for i in range(count)]
        samples = [{**_HOT, "util": load, "temp_mem_c": 60.0 + i} for i, load in enumerate(loads)]
        samples[1]["throttle"] = ["power"]
        samples[2] = {**_NONE, "stale_s": 3.0}
        samples[3] = _NONE
        script.sample(*samples)
        wanted = ["%   30  31!old n/a  34 ", "°C  60  61 n/a n/a  64 "]
        wanted += [f" {base + i} " for base in (30, 60) for i in range(4, count)]
        await until(pilot, lambda: all(text in shown(app) for text in wanted))


@pytest.mark.parametrize(("watts", "wanted"), [(640.0, "W  640 640 n/a 640"), (1400.0, "kW 1.4 1.4 n/a 1.4")])
async def test_where_there_is_room_cells_show_power_too(watts: float, wanted: str) -> None:
    script = Gpus()
    async with screen(script, size=(80, 24)) as (_, pilot):
        await until(pilot, "no sample yet")
        script.greet(8)
        known = {**_HOT, "power_w": watts}
        script.sample(known, known, {**_HOT, "power_w": None}, *[known] * 5)
        await until(pilot, wanted)


async def test_a_machine_with_more_gpus_than_fit_scrolls_in_rows() -> None:
    script = Gpus()
    async with screen(script, size=(80, 24)) as (app, pilot):
        await until(pilot, "no sample yet")
        script.greet(64)
        script.sample(*[{**_HOT, "util": i / 100} for i in range(64)])
        await until(pilot, "%    0   1   2 ")
        app.screen.query_one("#servers").focus()
        await pilot.press("end")
        await until(pilot, " 63")


_ANY = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=3))
_DEVICE = st.dictionaries(st.sampled_from([*_HOT, "index", "stale_s", "tensor", "mem_total"]), _ANY)


@given(st.lists(_DEVICE, max_size=5), st.lists(_DEVICE, max_size=5), st.integers(min_value=1, max_value=200))
@example([], [{"index": 0, "throttle": ["\ufbc3"]}], 51)
def test_whatever_a_server_says_can_be_drawn(about: list[Any], devices: list[Any], width: int) -> None:
    now, look = MachineNow(), Look(bundled_default())
    now.take({"type": "hello", "devices": about}, 1.0)
    now.take({"type": "tick", "t_mono_ns": 1, "t_wall_ns": 1, "devices": devices}, 1.0)
    known = list(now.each())
    lines = [gpus.line(now, device, width, look, 0.0) for device in known]
    lines += gpus.cells(known, width, 3, look, 0.0)
    text = "".join(part for line in lines for part, _ in line)
    assert text.isprintable()
    load = load_of(now)
    assert load is None or 0 <= load <= 1
    gpus.power(known)
    gpus.memory(known)
