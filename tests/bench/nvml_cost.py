"""What reading an NVIDIA GPU costs, beside nvitop and nvidia-smi: `python -m tests.bench.nvml_cost`.

For a machine with a GPU and its driver: a bare Python with nvidia-ml-py on its path, and nvitop if that is compared.
`--load` keeps GPU 0 busy by PyTorch in a process of its own meanwhile; `--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from runners.agent.gpu.nvml import Nvml
from runners.agent.gpu.source import FIELDS, SourceError

_SMI_FIELDS = (
    "utilization.gpu,utilization.memory,memory.used,power.draw,temperature.gpu,temperature.memory,clocks.sm,clocks.mem,"
    "clocks_throttle_reasons.active"
)
_RAW_FIELDS = (74, 75, 82, 83, 138, 139, 185, 186, 197, 198)
_LOAD = """
import os, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("busy", flush=True)
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
Timing = dict[str, float]


def timed(call: Callable[[], object], times: int, gpus: int, pause_s: float = 0.0) -> Timing:
    """Milliseconds of one call divided by the number of GPUs: median, 99th percentile, most."""
    took = []
    call()
    for _ in range(times):
        if pause_s:
            time.sleep(pause_s)
        begun = time.perf_counter()
        call()
        took.append((time.perf_counter() - begun) * 1e3 / gpus)
    took.sort()
    return {
        "n": times,
        "median_ms": statistics.median(took),
        "p99_ms": took[min(len(took) - 1, int(len(took) * 0.99))],
        "most_ms": took[-1],
    }


def nvitop_snapshot() -> Callable[[], object] | None:
    """One snapshot of all devices, where nvitop is installed."""
    try:
        from nvitop import Device  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    devices = Device.all()
    return lambda: [device.as_snapshot() for device in devices]


def smi() -> Callable[[], object] | None:
    """One `nvidia-smi --query-gpu` of the same fields."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    argv = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    return lambda: subprocess.run(argv, check=True, capture_output=True, timeout=60)


def costs(source: Nvml) -> dict[str, Timing]:
    """Every reader, and the others, per GPU."""
    gpus = len(source.devices)
    found = {
        "hot tick, without energy": timed(source.hot, 2000, gpus),
        "hot tick at 10 Hz": timed(source.hot, 100, gpus, pause_s=0.1),
        "slow (GPM, counters)": timed(source.slow, 50, gpus, pause_s=0.12),
        "energy": timed(source.energy, 100, gpus, pause_s=0.02),
        "static": timed(source.static, 50, gpus),
        "events": timed(source.events, 200, gpus),
    }
    for name, call, times in (("nvitop snapshot", nvitop_snapshot(), 30), ("nvidia-smi --query-gpu", smi(), 30)):
        if call is not None:
            found[name] = timed(call, times, gpus)
    return found


def fields(source: Nvml) -> list[dict[str, Any]]:
    """For each device: every field of the schema with its value, and why it is None."""
    source.slow()
    time.sleep(1.0)
    told = []
    for device, *readings in zip(
        source.devices, source.hot(), source.slow(), source.energy(), source.static(), strict=True
    ):
        reading = {key: value for part in readings for key, value in part.items()}
        reasons = source.reasons[source.devices.index(device)].known
        rows = {
            field: {"value": reading.get(field), "absent": field not in reading, "why": reasons.get(field)}
            for field in FIELDS
        }
        told.append({"device": device, "fields": rows})
    return told


def raw() -> list[dict[str, Any]]:
    """The field values as the driver gives them, twice, to see types and units."""
    import pynvml

    rows = []
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for moment in range(2):
        time.sleep(moment)
        wanted = [(number, 0xFFFFFFFF if number in (138, 139) else 0) for number in _RAW_FIELDS]
        begun = time.perf_counter()
        values = pynvml.nvmlDeviceGetFieldValues(handle, wanted)
        took_ms = (time.perf_counter() - begun) * 1e3
        rows += [
            {
                "field": v.fieldId,
                "rc": v.nvmlReturn,
                "type": v.valueType,
                "value": v.value.ullVal,
                "at_us": v.timestamp,
            }
            for v in values
        ]
        rows.append({"batch_ms": round(took_ms, 3)})
    for policy in range(2):
        try:
            status = pynvml.nvmlDeviceGetViolationStatus(handle, policy)
            rows.append({"policy": policy, "violation": status.violationTime, "reference": status.referenceTime})
        except pynvml.NVMLError as e:
            rows.append({"policy": policy, "rc": e.value})
    return rows


def busy() -> subprocess.Popen[str]:
    """A process that keeps GPU 0 busy, and is."""
    process = subprocess.Popen([sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "busy":
        raise SystemExit("The load did not start: PyTorch with CUDA is needed for --load.")
    time.sleep(2.0)
    return process


def show(result: dict[str, Any]) -> None:
    """The same for people."""
    base = result["costs"]["hot tick, without energy"]["median_ms"]
    print(f"{'per GPU':<28}{'median ms':>12}{'p99 ms':>12}{'most ms':>12}{'n':>7}{'x hot tick':>12}")
    for name, t in result["costs"].items():
        times = t["median_ms"] / base
        print(f"{name:<28}{t['median_ms']:>12.4f}{t['p99_ms']:>12.4f}{t['most_ms']:>12.4f}{t['n']:>7}{times:>12.1f}")
    for device in result["devices"]:
        print("\n" + json.dumps(device["device"]))
        for field, row in device["fields"].items():
            why = "" if row["why"] is None else ": ".join(row["why"])
            print(f"  {field:<14}{'(absent)' if row['absent'] else json.dumps(row['value'])}  {why}")
    for row in result["raw"]:
        print(json.dumps(row))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    source = Nvml()
    begun = time.perf_counter()
    try:
        source.open()
    except SourceError as e:
        print(f"{e.code}: {e} {e.mend or ''}", file=sys.stderr)
        return 1
    opened_ms = (time.perf_counter() - begun) * 1e3
    load = busy() if words.load else None
    try:
        result = {"open_ms": opened_ms, "pid": os.getpid(), "load": words.load, "costs": costs(source)}
        result |= {"devices": fields(source), "raw": raw(), "events": source.events()}
    finally:
        if load is not None:
            load.kill()
            load.wait()
        source.close()
    if words.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
