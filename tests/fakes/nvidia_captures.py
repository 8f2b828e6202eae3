"""The captures of NVIDIA's tools, each through the parser of its format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runners.agent.gpu.nvidia_smi import untold
from runners.agent.gpu.smi_report import Gpu, report_of_text, report_of_xml, rows_of_csv, rows_of_dmon
from runners.agent.gpu.smi_values import POWER_COUNTERS, RULES, THERMAL_COUNTERS, Row, reading, throttle_seconds
from runners.agent.gpu.source import FIELDS, NOT_FOUND
from tests.fakes.coverage import COUNTER, Capture

_SECTION = re.compile(r"#{80}\n# (?:idle|load|capabilities) :: (.*)\n# \$ (.*)\n(?:# .*\n)*#{80}\n")
_FROM_CSV = tuple(name for name in RULES if not name.startswith("pcie_"))


def sections(text: str) -> Iterator[tuple[str, str]]:
    """(what was asked, what came) of a file that holds the answers to many commands."""
    parts = _SECTION.split(text)
    for at in range(1, len(parts), 3):
        yield parts[at], parts[at + 2]


def fields_of(row: Row, names: tuple[str, ...], procs: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every field of the schema of one row, and why those are None that are."""
    reasons = untold()
    if any(name.startswith("pcie_") for name in names):
        for name in ("pcie_tx_bps", "pcie_rx_bps"):
            reasons.known.pop(name)
    values: dict[str, Any] = dict.fromkeys(FIELDS)
    values.update(reading(row, (*names, "throttle"), reasons))
    for name, counters in (("thr_power", POWER_COUNTERS), ("thr_thermal", THERMAL_COUNTERS)):
        if throttle_seconds(row, counters) is not None:
            values[name] = COUNTER
        else:
            reasons.none(name, NOT_FOUND, f"{where} has no such counter")
    values["procs"] = procs
    if procs is None:
        reasons.not_told(("procs",), f"{where} lists no processes")
    reasons.not_told((name for name in FIELDS if values[name] is None), f"{where} does not tell it")
    return values, reasons.known


def _capture(row: Row, names: tuple[str, ...], procs: Any, tool: str, version: str, file: str) -> Capture:
    values, why = fields_of(row, names, procs, tool)
    model = row.get("name", "?") + (" (MIG)" if row.get("mig.mode.current") == "Enabled" else "")
    return Capture("nvidia", model, tool, row.get("driver_version", version), file, values, why)


def captures(root: Path) -> list[Capture]:
    """All of the folder of real captures."""
    found: list[Capture] = []
    for path in sorted([*root.glob("telemetry/nvidia/*.xml"), *root.glob("h200/*.xml")]):
        found += [_of_report(gpu, "nvidia-smi -q -x", path.name) for gpu in report_of_xml(path.read_text())]
    for path in sorted(root.glob("telemetry/nvidia/*.txt")):
        found += _of_session(path)
    return found


def _of_report(gpu: Gpu, tool: str, file: str) -> Capture:
    return _capture(gpu.row, tuple(RULES), gpu.procs, tool, "?", file)


def _of_session(path: Path) -> list[Capture]:
    found: list[Capture] = []
    for what, text in sections(path.read_text()):
        if what == "query (-q)":
            found += [_of_report(gpu, "nvidia-smi -q", path.name) for gpu in report_of_text(text)]
        elif what.startswith("query-gpu (csv"):
            tool = "nvidia-smi --query-gpu"
            found += [_capture(row, _FROM_CSV, None, tool, "?", path.name) for row in rows_of_csv(text)]
        elif what.startswith("dmon"):
            known = found[-1]
            for _, row in rows_of_dmon(text):
                names = tuple(name for name in RULES if set(RULES[name].names) & set(row))
                named = {**row, "name": known.model, "driver_version": known.version}
                found.append(_capture(named, names, None, "nvidia-smi dmon", "?", path.name))
    return found
