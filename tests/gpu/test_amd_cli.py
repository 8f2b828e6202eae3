"""The sources over amd-smi and rocm-smi, with tools on PATH that print what a test says."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.agent.gpu import amd_cli
from runners.agent.gpu.amd_cli import AmdSmi, RocmSmi
from runners.agent.gpu.source import (
    BAD_VALUE,
    DEVICE_KEYS,
    FAILED,
    HOT,
    NOT_FOUND,
    NOT_TOLD,
    SENTINEL,
    SHARED,
    SLOW,
    STATIC,
    Gone,
    Source,
    SourceError,
)

_TOOL = """#!{python}
import json, os, sys, time
folder = {folder!r}
with open(os.path.join(folder, "calls"), "a") as f:
    f.write(json.dumps(sys.argv[1:]) + "\\n")
name = next((word for word in sys.argv[1:] if not word.startswith("-")), "all").split("/")[-1]
path = os.path.join(folder, name)
if not os.path.exists(path):
    sys.exit("unknown command " + name)
text = open(path).read()
if text.startswith("sleep"):
    time.sleep(60)
sys.stdout.write(text)
sys.exit(int(os.path.exists(path + ".fails")))
"""


class Tool:
    """An executable in a folder of its own; `says[verb]` is what it prints."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.folder.mkdir()
        path = root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(_TOOL.format(python=sys.executable, folder=str(self.folder)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def says(self, verb: str, document: Any, before: str = "") -> None:
        """The answer to one verb; "all" for a call without one."""
        text = document if isinstance(document, str) else json.dumps(document, indent=4)
        (self.folder / verb).write_text(before + text)

    def calls(self) -> int:
        """How often it ran."""
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tool]:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    return lambda name: Tool(tmp_path, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the sources' own clock."""
    now = [1000.0]
    monkeypatch.setattr("runners.agent.gpu.amd_cli.time.monotonic", lambda: now[0])
    return now


def gpu(index: int, power: Any = 712, util: Any = 93) -> dict[str, Any]:
    return {
        "gpu": index, "usage": {"gfx_activity": {"value": util, "unit": "%"}, "umc_activity": "N/A"},
        "power": {"socket_power": {"value": power, "unit": "W"}, "throttle_status": "N/A"},
        "throttle": {"ppt_violation_status": "ACTIVE", "prochot_violation_status": "NOT ACTIVE",
                     "ppt_violation_activity": {"value": 87, "unit": "%"}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 61, "unit": "C"}},
        "energy": {"total_energy_consumption": {"value": 14292727.274, "unit": "J"}},
        "mem_usage": {"used_vram": {"value": 150000, "unit": "MB"}, "total_vram": {"value": 196592, "unit": "MB"}},
    }  # fmt: skip


def amd_smi(
    tool: Callable[[str], Tool], gpus: list[dict[str, Any]], static: list[dict[str, Any]] | None = None
) -> Tool:
    made = tool("amd-smi")
    made.says(
        "list", [{"gpu": one["gpu"], "bdf": f"0000:{one['gpu'] + 12:02x}:00.0", "partition_id": 0} for one in gpus]
    )
    model = {"asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x9F444A2FB30ADEB0"}}
    made.says("static", static or [{"gpu": one["gpu"], **model} for one in gpus])
    made.says("version", "AMDSMI Tool: 26.2.0+abc | AMDSMI Library version: 26.2.0 | ROCm version: 7.1.0")
    made.says("metric", {"gpu_data": gpus}, before="WARNING: User is missing the following groups: [render]\n")
    return made


def opened(source: Source) -> Source:
    source.open()
    return source


def test_amd_smi_tells_what_it_tells_and_says_what_it_does_not(
    tool: Callable[[str], Tool], clock: list[float]
) -> None:
    amd_smi(tool, [gpu(0), gpu(1, power="N/A")])
    source = opened(AmdSmi())
    assert source.most_hz <= 0.2
    assert source.version == "26.2.0+abc"
    assert set(source.devices[0]) == set(DEVICE_KEYS)
    assert [d["bdf"] for d in source.devices] == ["0000:0c:00.0", "0000:0d:00.0"]
    assert [source.devices[0][key] for key in ("model", "uuid", "partition")] == [
        "AMD Instinct MI300X", "GPU-9f444a2fb30adeb0", None,
    ]  # fmt: skip
    first, second = source.hot()
    assert set(first) == set(HOT)
    assert {field: value for field, value in first.items() if value is not None} == {
        "util": 0.93, "power_w": 712, "temp_hot_c": 61, "mem_used": 150000 << 20, "throttle": ["power"],
    }  # fmt: skip
    assert second["power_w"] is None
    known = source.reasons[1].known
    assert [known[f][0] for f in ("power_w", "mem_busy", "temp_edge_c", "temp_mem_c")] == [SENTINEL] * 3 + [NOT_TOLD]
    assert source.energy()[0]["energy_j"] == 14292727.274
    slow = source.slow()[0]
    assert set(slow) == set(SLOW)
    assert slow["thr_power"] == 0.87
    static = source.static()[0]
    assert set(static) == set(STATIC)
    assert (static["mem_total"], static["procs"]) == (196592 << 20, None)
    for reading in (first, slow, static):
        assert {f for f, value in reading.items() if value is None} <= set(source.reasons[0].known)


def test_one_output_answers_all_questions_once_and_no_tool_runs_more_often(
    tool: Callable[[str], Tool], clock: list[float]
) -> None:
    made = amd_smi(tool, [gpu(0)])
    source = opened(AmdSmi())
    before = made.calls()
    assert source.slow() == source.energy() == source.static() == [{}]
    source.hot()
    ran_ns = time.monotonic_ns()
    assert source.energy()[0]["energy_at"] < ran_ns, "when the tool ran, not when it was asked"
    assert source.energy() == [{}], "the same counter with a new time would be a lie"
    clock[0] += 1
    assert source.hot() == [{}]
    assert made.calls() == before + 1
    clock[0] += 4
    assert source.hot()[0]["power_w"] == 712
    assert source.energy()[0]
    assert made.calls() == before + 2
    asked = {json.loads(line)[0] for line in (made.folder / "calls").read_text().splitlines()}
    assert asked == {"list", "static", "version", "metric"}, "asking for processes may start a context on a GPU"


def test_the_second_die_of_an_mi250_and_a_counter_at_0(tool: Callable[[str], Tool], clock: list[float]) -> None:
    gpus = [gpu(0, 402), gpu(1, 0)]
    gpus[1]["energy"]["total_energy_consumption"] = 0.0
    gpus[0]["energy"]["total_energy_consumption"] = 0.0
    amd_smi(tool, gpus, [{"gpu": i, "asic": {"market_name": "AMD Instinct MI250X"}} for i in range(2)])
    source = opened(AmdSmi())
    assert [d["package_id"] for d in source.devices] == ["0000:0c:00.0"] * 2
    assert [reading["power_w"] for reading in source.hot()] == [402, None]
    assert source.reasons[1].known["power_w"][0] == SHARED
    assert [reading["energy_j"] for reading in source.energy()] == [None, None]
    assert [why.known["energy_j"][0] for why in source.reasons] == [BAD_VALUE, SHARED]


def test_partitions_by_address_and_number(tool: Callable[[str], Tool], clock: list[float]) -> None:
    made = amd_smi(tool, [gpu(0), gpu(1, "N/A", 50)])
    made.says("list", [{"gpu": i, "bdf": f"0000:0c:00.{i}", "partition_id": i} for i in range(2)])
    made.says("static", [{"gpu": i, "partition": {"accelerator_partition": "CPX"}} for i in range(2)])
    source = opened(AmdSmi())
    assert [(d["bdf"], d["partition"]) for d in source.devices] == [("0000:0c:00.0", 0), ("0000:0c:00.0", 1)]
    first, second = source.hot()
    assert (first["power_w"], second["power_w"], second["util"], second["mem_used"]) == (712, None, 0.5, None)
    assert source.reasons[1].known["mem_used"][0] == SHARED


@pytest.mark.parametrize(("gfx", "throttle"), [("gfx1100", None), ("", None), ("gfx90a", ["other"])])
def test_rdna3_always_says_that_it_throttles(
    tool: Callable[[str], Tool], clock: list[float], gfx: str, throttle: list[str] | None
) -> None:
    card = gpu(0)
    card["power"]["throttle_status"] = "THROTTLED"
    del card["throttle"]
    amd_smi(tool, [card], [{"gpu": 0, "asic": {"target_graphics_version": gfx}}])
    source = opened(AmdSmi())
    assert source.hot()[0]["throttle"] == throttle
    assert source.reasons[0].known.get("throttle", (None,))[0] == (BAD_VALUE if throttle is None else None)


@pytest.mark.parametrize("broken", ["nothing", "cut", "slow"])
def test_a_run_that_fails_costs_its_tick_and_three_close_this_way(
    tool: Callable[[str], Tool], clock: list[float], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    made = amd_smi(tool, [gpu(0)])
    source = opened(AmdSmi())
    monkeypatch.setattr(amd_cli, "_RUN_S", 0.5)
    whole = (made.folder / "metric").read_text()
    (made.folder / "metric").write_text({"nothing": "", "cut": whole[:-60], "slow": "sleep"}[broken])
    assert source.hot() == [dict.fromkeys(HOT)]
    clock[0] += 5
    made.says("metric", whole)
    assert source.hot()[0]["power_w"] == 712
    (made.folder / "metric").unlink()
    for _ in range(2):
        clock[0] += 5
        source.hot()
    clock[0] += 5
    with pytest.raises(Gone, match="amd-smi fails: exit 1: unknown command metric"):
        source.hot()


def test_a_tool_that_ends_with_an_error_after_it_printed_all_is_read(
    tool: Callable[[str], Tool], clock: list[float]
) -> None:
    made = amd_smi(tool, [gpu(0)])
    (made.folder / "metric.fails").touch()
    assert opened(AmdSmi()).hot()[0]["power_w"] == 712


@pytest.mark.parametrize("kind", [AmdSmi, RocmSmi])
def test_without_the_tool_this_way_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[AmdSmi] | type[RocmSmi]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError) as found:
        kind().open()
    assert (found.value.code, found.value.mend) == (NOT_FOUND, "install ROCm's tools")


def test_a_tool_that_sees_no_gpu(tool: Callable[[str], Tool]) -> None:
    tool("amd-smi").says("list", "ERROR: no drivers\n")
    with pytest.raises(SourceError) as found:
        AmdSmi().open()
    assert found.value.code == FAILED
    assert "amd-smi: no JSON" in found.value.text


def card(**more: str) -> dict[str, str]:
    return {
        "PCI Bus": "0000:2F:00.0", "Unique ID": "0x719d230578348e8c", "VBIOS version": "113-D65209-073",
        "Card series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Average Graphics Package Power (W)": "89.0",
        "Max Graphics Package Power (W)": "560.0", "GPU use (%)": "10", "GPU memory use (%)": "0",
        "Temperature (Sensor edge) (C)": "32.0", "Temperature (Sensor junction) (C)": "N/A",
        "sclk clock speed:": "(800Mhz)", "mclk clock speed:": "(1600Mhz)", "Energy counter": "62929744071539",
        "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "65535", **more,
    }  # fmt: skip


def test_rocm_smi_of_an_mi250(tool: Callable[[str], Tool], clock: list[float]) -> None:
    made = tool("rocm-smi")
    second = {
        "Average Graphics Package Power (W)": "N/A (Secondary die)",
        "Energy counter": "0",
        "PCI Bus": "0000:32:00.0",
    }
    document = {"card1": card(**second), "card0": card(), "system": {"Driver version": "6.2.4"}}
    made.says("vram", "some words first\n" + json.dumps(document))
    source = opened(RocmSmi())
    assert [d["bdf"] for d in source.devices] == ["0000:2f:00.0", "0000:32:00.0"]
    assert [d["package_id"] for d in source.devices] == ["0000:2f:00.0"] * 2
    assert source.devices[0]["driver"] == "6.2.4"
    first, other = source.hot()
    assert (first["power_w"], other["power_w"], first["util"], first["mem_busy"]) == (89.0, None, 0.1, 0.0)
    assert (first["mem_used"], first["temp_hot_c"], first["clk_sm_mhz"]) == (65535, None, 800)
    assert source.reasons[1].known["power_w"][0] == SHARED
    energy = source.energy()
    assert energy[0]["energy_j"] == pytest.approx(962825096.3, rel=0.003)
    assert energy[1]["energy_j"] is None
    assert source.static()[0]["power_limit_w"] == 560.0


def test_rocm_smi_takes_an_rdna_card_for_a_second_die(tool: Callable[[str], Tool], clock: list[float]) -> None:
    alone = {
        "Average Graphics Package Power (W)": "N/A (Secondary die)",
        "Card series": "Navi 22 [Radeon RX 6700 XT]",
    }
    tool("rocm-smi").says("vram", {"card0": card(**alone)})
    source = opened(RocmSmi())
    assert source.devices[0]["package_id"] is None
    assert source.hot()[0]["power_w"] is None
    assert source.reasons[0].known["power_w"][0] == SENTINEL
