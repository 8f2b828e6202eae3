"""Every capture of NVIDIA's tools, and a recorded training replayed through the driver library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.agent.gpu.nvml_hot import throttle
from runners.agent.gpu.smi_report import names_of_help, report_of_text, report_of_xml, rows_of_csv
from runners.agent.gpu.smi_values import RULES
from runners.agent.gpu.source import CODES, FIELDS
from tests.fakes.coverage import PAGE, Capture, captures, in_page, table
from tests.fakes.library import environment
from tests.fakes.nvidia_captures import sections
from tests.fakes.nvml import SYMBOLS, FakeNvml, field, u32, u64
from tests.gpu.driven import Driven

REAL = Path(os.environ["EKVI_REAL_DATA"]) if os.environ.get("EKVI_REAL_DATA") else None
pytestmark = pytest.mark.skipif(REAL is None, reason="EKVI_REAL_DATA names no folder of real captures")

ROWS = 400  # of the trace
# What every GPU tells by every tool that can tell it at all.
ALWAYS = {"power_w", "temp_edge_c", "clk_sm_mhz", "clk_mem_mhz"}


@pytest.fixture(scope="module")
def found() -> list[Capture]:
    assert REAL is not None
    return captures("nvidia", REAL)


def test_every_file_gives_something(found: list[Capture]) -> None:
    assert REAL is not None
    files = {path.name for path in [*REAL.glob("telemetry/nvidia/*"), *REAL.glob("h200/*.xml")]}
    assert {capture.file for capture in found} == files
    assert len({capture.model for capture in found}) >= 8
    for capture in found:
        told = {name for name, value in capture.values.items() if value is not None}
        assert told >= ALWAYS, capture


def test_each_none_has_its_reason_and_each_value_its_range(found: list[Capture]) -> None:
    for capture in found:
        assert set(capture.values) == set(FIELDS)
        for name, value in capture.values.items():
            if value is None:
                assert capture.why[name][0] in CODES, (capture.file, name)
            elif name in ("util", "mem_busy"):
                assert isinstance(value, float)
                assert 0 <= value <= 1
            elif name == "temp_edge_c":
                assert isinstance(value, int)
                assert 10 < value < 100


def _value_of(word: str) -> float | None:
    """A number as a person reads it: what stands in front, where digits do."""
    digits = re.match(r"-?\d+(\.\d+)?", word.strip())
    return float(digits.group()) if digits else None


def test_no_none_became_0_and_no_number_became_none() -> None:
    """Asked anew of the raw words: a field is 0 only where the tool wrote a 0."""
    assert REAL is not None
    seen = 0
    for row in _rows(REAL):
        for name, rule in RULES.items():
            words = [row[word] for word in rule.names if word in row]
            numbers = [number for number in map(_value_of, words) if number is not None]
            parsed = _parsed(row, name)
            if parsed is None:
                assert not numbers, (name, words)
            else:
                assert numbers, (name, words)
                assert (parsed == 0) == (numbers[0] == 0), (name, words)
                seen += 1
    assert seen > 200


def _parsed(row: dict[str, str], name: str) -> Any:
    from runners.agent.gpu.smi_values import reading
    from runners.agent.gpu.source import Reasons

    return reading(row, [name], Reasons())[name]


def _rows(root: Path) -> Iterator[dict[str, str]]:
    for path in [*root.glob("telemetry/nvidia/*.xml"), *root.glob("h200/*.xml")]:
        yield from (gpu.row for gpu in report_of_xml(path.read_text()))
    for path in root.glob("telemetry/nvidia/*.txt"):
        for what, text in sections(path.read_text()):
            if what == "query (-q)":
                yield from (gpu.row for gpu in report_of_text(text))
            elif what.startswith("query-gpu (csv"):
                yield from rows_of_csv(text)


def test_the_formats_of_one_machine_agree(found: list[Capture]) -> None:
    """Text and CSV of a session were taken within seconds: what does not move is the same in both."""
    steady = ("mem_total", "power_limit_w", "ecc_corr", "ecc_uncorr", "clk_mem_mhz")
    by_file: dict[str, dict[str, list[Capture]]] = {}
    for capture in found:
        by_file.setdefault(capture.file, {}).setdefault(capture.tool, []).append(capture)
    compared = 0
    for tools in by_file.values():
        texts, csvs = tools.get("nvidia-smi -q", []), tools.get("nvidia-smi --query-gpu", [])
        for name in steady if len(texts) == len(csvs) else ():
            values = [[c.values[name] for c in part[-1:]] for part in (texts, csvs)]
            assert values[0] == values[1], name
            compared += bool(values[0])
    assert compared >= 4 * len(steady)


def test_what_is_asked_of_nvidia_smi_is_known_to_the_drivers_of_the_captures() -> None:
    assert REAL is not None
    for path in REAL.glob("telemetry/nvidia/*.txt"):
        known = {
            n for what, text in sections(path.read_text()) if what == "help-query-gpu" for n in names_of_help(text)
        }
        assert len(known) > 200
        for field_name, rule in RULES.items():
            if not field_name.startswith("pcie_"):  # those stand in reports alone
                assert set(rule.names) & known, (path.name, field_name)


def test_instances_of_mig_are_in_the_reports() -> None:
    assert REAL is not None
    (text,) = REAL.glob("telemetry/nvidia/*h200-mig*")
    load = [gpu for what, part in sections(text.read_text()) if what == "query (-q)" for gpu in report_of_text(part)][
        -1
    ]
    assert [i["partition"] for i in load.instances] == ["2/0", "2/1", "3/0", "9/0", "10/0"]
    assert load.instances[0]["mem_total"] == 71424 << 20
    assert load.procs is not None
    assert len(load.procs) == 3
    (a100, *_) = report_of_xml((REAL / "telemetry/nvidia/telegraf__a100-sxm4-v12.xml").read_text())
    assert [i["partition"] for i in a100.instances] == ["3/0", "4/0", "5/0", "6/0"]


def test_a_real_library_has_every_function_that_the_fake_one_has() -> None:
    assert REAL is not None
    (text,) = REAL.glob("telemetry/nvidia/*h100*")
    names = next(part for what, part in sections(text.read_text()) if what == "nvml-symbols").split()
    assert set(SYMBOLS) <= set(names)


def test_a_recorded_training_is_read_as_it_was(tmp_path: Path, nvml_library: Path) -> None:
    assert REAL is not None
    lines = (REAL / "h200/nvml_train_trace_h200.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:ROWS]]
    fake = FakeNvml(tmp_path / "fakes", nvml_library)
    driven = Driven("nvml", "Nvml", environment(fake.program))
    try:
        driven.ask("open")
        with fake.quietly():  # from here on a row at each call
            fake.device(0, "UtilizationRates", 1, [u32(*row["util"]) for row in rows])
            fake.device(0, "Temperature", 2, [u32(row["temp"]) for row in rows], 0)
            fake.device(0, "ClockInfo", 2, [u32(row["sm"]) for row in rows], 1)
            fake.device(0, "ClockInfo", 2, [u32(row["memclk"]) for row in rows], 2)
            fake.device(0, "CurrentClocksEventReasons", 1, [u64(row["reasons"]) for row in rows])
            fake.device(0, "MemoryInfo_v2", 1, [u64(0x02000028, 0, 0, 0, row["mem"]) for row in rows])
            fake.device(0, "TotalEnergyConsumption", 1, [u64(row["energy_mj"]) for row in rows])
            fake.set_field(0, 186, [field(row["power_mw"]) for row in rows])
        for row in rows:
            (hot,), (energy,) = driven.ask("hot"), driven.ask("energy")
            told = (hot["power_w"], hot["util"], hot["mem_busy"], hot["mem_used"], hot["temp_edge_c"])
            busy, memory = row["util"]
            assert told == (row["power_mw"] / 1000, busy / 100, memory / 100, row["mem"], row["temp"])
            clocks = (hot["clk_sm_mhz"], hot["clk_mem_mhz"], hot["throttle"])
            assert clocks == (row["sm"], row["memclk"], throttle(row["reasons"]))
            assert energy["energy_j"] == row["energy_mj"] / 1000
    finally:
        driven.close()


def test_the_page_shows_what_the_captures_show(found: list[Capture]) -> None:
    assert in_page(PAGE.read_text(), "nvidia") == table(found), "run python -m tests.fakes.coverage --write"
