"""A program `nvidia-smi` on a PATH of its own, which answers as a test says: for sources that call it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_PROGRAM = """#!{python} -IS
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/answers.json") as f:
    answers = json.load(f)
with open(here + "/calls", "a") as f:
    f.write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(answers["delay_s"])
if answers["fails"]:
    print(answers["fails"][1])
    sys.exit(answers["fails"][0])
words = sys.argv[1:]
if words == ["--help-query-gpu"]:
    for name in answers["listed"]:
        print('"%s"\\nWhat it is.\\n' % name)
elif words == ["-q", "-x"]:
    print(answers["xml"])
elif words == ["topo", "-m"]:
    print(answers["topo"])
elif words[0].startswith("--query-gpu="):
    for name in words[0].partition("=")[2].split(","):
        if name in answers["refused"]:
            print('Field "%s" is not a valid field to query.\\n' % name)
            sys.exit(2)
    for row in answers["rows"]:
        print(", ".join(row.get(name, "[N/A]") for name in words[0].partition("=")[2].split(",")))
else:
    print("Invalid combination of input arguments.")
    sys.exit(1)
"""
_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>580.159.04</driver_version><cuda_version>13.0</cuda_version>{gpus}</nvidia_smi_log>
"""
_GPU = """<gpu id="00000000:{bus:02X}:00.0"><product_name>{name}</product_name><uuid>{uuid}</uuid>
<vbios_version>96.00</vbios_version><mig_mode><current_mig>Disabled</current_mig></mig_mode>
<fan_speed>{fan}</fan_speed><fb_memory_usage><total>{total} MiB</total><used>55 MiB</used></fb_memory_usage>
<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile>
<sram_correctable>1</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>2</sram_uncorrectable_secded><dram_correctable>3</dram_correctable>
<dram_uncorrectable>4</dram_uncorrectable></volatile></ecc_errors>
<gpu_power_readings><instant_power_draw>78.21 W</instant_power_draw>
<current_power_limit>700.00 W</current_power_limit>
<default_power_limit>700.00 W</default_power_limit><max_power_limit>700.00 W</max_power_limit></gpu_power_readings>
<processes><process_info><pid>4242</pid><type>C</type><used_memory>100 MiB</used_memory></process_info>
<process_info><pid>17</pid><type>G</type><used_memory>22 MiB</used_memory></process_info></processes></gpu>"""
H200_ROW = {
    "utilization.gpu": "97", "utilization.memory": "41", "memory.used": "51200", "power.draw.instant": "433.10",
    "power.draw": "412.30", "temperature.gpu": "61", "temperature.memory": "68", "clocks.current.sm": "1755",
    "clocks.current.memory": "3201", "clocks_event_reasons.active": "0x0000000000000004",
    "clocks_event_reasons_counters.sw_power_cap": "1000000", "clocks_event_reasons_counters.sw_thermal_slowdown": "0",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "0",
}  # fmt: skip


class FakeSmi:
    """`values` of answers.json may be changed while processes use it; `env` has the PATH that finds it."""

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(_PROGRAM.replace("{python}", sys.executable))
        program.chmod(0o755)
        self._folder = folder
        self.env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        self.rows: list[dict[str, str]] = [{**H200_ROW, "uuid": f"GPU-{i}"} for i in range(gpus)]
        self._answers: dict[str, Any] = {
            "rows": self.rows, "listed": ["uuid", *H200_ROW], "refused": [], "fails": None, "delay_s": 0.0,
            "topo": "\tGPU0\tCPU Affinity\nGPU0\t X \t0-23\n", "xml": xml([f"GPU-{i}" for i in range(gpus)]),
        }  # fmt: skip
        self.set()

    def set(self, **answers: Any) -> None:
        """`rows`, `listed` and `refused` names, `xml`, `topo`, `fails` (exit status, words), `delay_s`."""
        self._answers.update(answers)
        new = self._folder / "answers.new"
        new.write_text(json.dumps(self._answers))
        new.replace(self._folder / "answers.json")

    def row(self, index: int, words: Mapping[str, str]) -> None:
        """Change what `--query-gpu` says of one GPU."""
        self.rows[index].update(words)
        self.set(rows=self.rows)

    @property
    def calls(self) -> list[str]:
        """The arguments of every call so far."""
        return (self._folder / "calls").read_text().splitlines()


def xml(uuids: Sequence[str], fan: str = "N/A") -> str:
    """A report of these GPUs."""
    gpus = [
        _GPU.format(bus=0x1B + i, name="NVIDIA H200", uuid=escape(uuid), fan=fan, total=143771)
        for i, uuid in enumerate(uuids)
    ]
    return _XML.format(gpus="".join(gpus))
