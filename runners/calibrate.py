"""stage=calibrate: what this server's own devices reach, as the measure that a training is held against.

Matrix products of the model's largest shapes (hidden x ffn and hidden x hidden, a micro batch of tokens) say what
the library gives for this work; on GPUs a square of 8192 says what it gives at its best. Beside them: the device's
memory, the way to the host and back, and the sum over all processes. Every process measures at once, as a training
runs, and the values are medians over the devices; who is slow is named. It takes less than a minute.
"""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runners import group, rates, wire
from runners.errors import ConfigurationError, writing
from runners.process import Process
from runners.rates import Unknown
from runners.schema import RunConfig

SCHEMA = "ekvi.calibrate/1"
NAME = "calibrate.json"
SQUARE = (8192, 8192, 8192)
_UNITS = {"copy": "GB/s", "host_to_device": "GB/s", "device_to_host": "GB/s", "all_reduce": "GB/s"}


def shapes(config: RunConfig) -> list[tuple[int, int, int]]:
    """(m, n, k) of the model's products: tokens x ffn x hidden, tokens x hidden x ffn, tokens x hidden x hidden."""
    tokens = config.training.micro_batch * config.training.sequence_length
    hidden, ffn = config.model.hidden, config.model.ffn
    return [(tokens, ffn, hidden), (tokens, hidden, ffn), (tokens, hidden, hidden)]


def precisions(training: str, device: torch.device) -> tuple[str, ...]:
    """What is multiplied in: on GPUs bf16, fp8 and the training's own; on a CPU the training's own."""
    if device.type == "cpu":
        return (training,)
    return tuple(dict.fromkeys(("bf16", "fp8", training)))


def device_of(backend: str, process: Process) -> torch.device:
    """The device of this process. Raises ConfigurationError where torch sees none of that family, or too few."""
    if backend == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"training.backend={backend}: torch {torch.__version__} sees no GPU here.",
            hint="See that the container was given the GPUs, and that torch was built for them.",
            every_rank=True,
        )
    if (torch.version.hip is not None) != (backend == "rocm"):
        built = "ROCm" if torch.version.hip is not None else "CUDA"
        raise ConfigurationError(
            f"training.backend={backend}, but this torch was built for {built}.", every_rank=True
        )
    return torch.device(group.device_of(process, group.gpu_count()))


def measure(config: RunConfig, process: Process) -> dict[str, Any]:
    """The document `ekvi.calibrate/1`, the same on all processes; every process of the stage calls it.

    `rates` holds each rate over the devices; `matmul_tflops` is the fastest product's in the training's precision,
    None with `matmul_why` where it cannot be had.
    """
    training = config.training
    if training.backend == "cpu" and training.precision not in rates.DTYPES:
        raise ConfigurationError(
            f"stage=calibrate measures fp32, bf16 and fp16 on a CPU, not training.precision={training.precision}.",
            hint="Leave the stage out, or set training.precision for it.",
            every_rank=True,
        )
    begin = time.perf_counter()
    device = device_of(training.backend, process)
    if device.type == "cpu":
        torch.set_num_threads(training.threads)
    else:
        torch.cuda.set_device(device)
    collective = group.collective_of(str(device))
    with group.joined(process, collective) if process.world > 1 else nullcontext():
        own = _own(config, process, device)
        reduced = _all_reduce(device, collective, process.world)
        everyone: list[Any] = [own] * process.world
        if process.world > 1:
            dist.all_gather_object(everyone, own)
    return {**document(config, everyone, reduced), "seconds": round(time.perf_counter() - begin, 3)}


def _own(config: RunConfig, process: Process, device: torch.device) -> dict[str, Any]:
    """What this process finds on its own device, each measurement begun together with the others."""
    found: dict[str, Any] = {"rank": process.rank, "host": socket.gethostname(), **_called(device, process)}
    own = shapes(config)
    for precision in precisions(config.training.precision, device):
        _wait(process)
        wanted = own if device.type == "cpu" else list(dict.fromkeys([SQUARE, *own]))
        found[precision] = _products(wanted, precision, device)
    _wait(process)
    found["copy"] = _tried(lambda: rates.copy(device))
    _wait(process)
    found.update({name: _plain(rate) for name, rate in rates.transfers(device).items()})
    return found


def _wait(process: Process) -> None:
    if process.world > 1:
        dist.barrier()


def _called(device: torch.device, process: Process) -> dict[str, Any]:
    """How a platform's own tools know this device."""
    if device.type == "cpu":
        return {"device": "cpu", "gpu": None, "uuid": None}
    known = torch.cuda.get_device_properties(device)
    uuid = getattr(known, "uuid", None)
    return {"device": known.name, "gpu": process.local_rank, "uuid": None if uuid is None else str(uuid)}


def _products(wanted: Sequence[tuple[int, int, int]], precision: str, device: torch.device) -> dict[str, Any]:
    """The products of one precision: the fastest's rate with its shape, and each shape's."""
    how: dict[str, Any] = {}
    if precision == "fp8":
        name = rates.fp8_format(device)
        if isinstance(name, Unknown):
            return _plain(name)
        how = {"format": name, "fast_accumulation": True}
        wanted = [shape for shape in wanted if rates.divisible(shape)]
    if precision == "fp32":
        how = {"float32_matmul_precision": torch.get_float32_matmul_precision()}
    found = [_tried(lambda shape=shape: rates.product(shape, precision, device)) for shape in wanted]  # type: ignore[misc]
    known = [one for one in found if one["value"] is not None]
    if not known:
        return {**how, **(found[0] if found else _plain(Unknown("no shape divides by 16")))}
    best = max(known, key=lambda one: one["value"])
    return {**best, **how, "shapes": known}


def _tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` measures; where the library refuses, why. One rate that fails costs none of the others."""
    try:
        return work()
    except (RuntimeError, NotImplementedError, TypeError) as error:  # out of memory is a RuntimeError too
        return _plain(Unknown(rates.first_line(error)))


def _plain(rate: dict[str, Any] | Unknown) -> dict[str, Any]:
    return {"value": None, "why": rate.why} if isinstance(rate, Unknown) else rate


def _all_reduce(device: torch.device, collective: str, world: int) -> dict[str, Any]:
    """The best size's bus rate over all processes, and each size's; unknown for one process."""
    if world == 1:
        return _plain(Unknown("one process has nobody to reduce with"))
    sizes = rates.all_reduce(device, collective, world)
    best = max(sizes, key=lambda one: one["value"])
    library = ".".join(map(str, torch.cuda.nccl.version())) if collective == "nccl" else None
    return {**best, "unit": "GB/s", "processes": world, "collective": collective, "library": library, "sizes": sizes}


def document(config: RunConfig, everyone: Sequence[Mapping[str, Any]], reduced: Mapping[str, Any]) -> dict[str, Any]:
    """What all processes found, with each rate's median, least and greatest over their devices."""
    training, first = config.training, everyone[0]
    names = [name for name, value in first.items() if isinstance(value, dict)]
    over = {name: across([(one, one[name]) for one in everyone], _UNITS.get(name, "TFLOP/s")) for name in names}
    best = over[training.precision]
    return {
        "schema": SCHEMA,
        "matmul_tflops": best["value"],
        "matmul_why": best.get("why"),
        "precision": training.precision,
        "backend": training.backend,
        "device": first["device"],
        "processes": len(everyone),
        "threads": training.threads if training.backend == "cpu" else None,
        "shapes": [_told(one) for one in first[training.precision].get("shapes", ())],
        "rates": {**over, "all_reduce": dict(reduced)},
        "devices": [_device(one, names) for one in everyone],
    }


def across(found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], unit: str) -> dict[str, Any]:
    """One rate over the devices: its median, least and greatest, and whose the least is.

    `found` are pairs of who measured and what. Where one device has no value, nobody's is told: the reason is.
    """
    failed = next((rate for _, rate in found if rate["value"] is None), None)
    if failed is not None:
        return {"value": None, "unit": unit, "why": failed.get("why")}
    values = [rate["value"] for _, rate in found]
    who, _slow = min(found, key=lambda pair: pair[1]["value"])
    how = {k: v for k, v in found[0][1].items() if k not in ("value", "least", "greatest", "passes", "shapes")}
    shape = [how.pop(k) for k in ("m", "n", "k")] if "m" in how else None
    return {
        "value": round(statistics.median(values), 6),
        "unit": unit,
        "least": min(values),
        "greatest": max(values),
        "slowest": {key: who[key] for key in ("rank", "host", "gpu", "uuid")},
        **how,
        **({"shape": shape} if shape else {}),
    }


def _told(shape: Mapping[str, Any]) -> dict[str, Any]:
    """A product's figures under the names that say their unit."""
    return {**{k: shape[k] for k in ("m", "n", "k", "least", "greatest", "passes")}, "tflops": shape["value"]}


def _device(one: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What one process found, without the shapes: the spread of its passes is of interest, their sizes are not."""
    kept = {key: one[key] for key in ("rank", "host", "device", "gpu", "uuid")}
    brief = {n: {k: one[n].get(k) for k in ("value", "least", "greatest")} for n in names}
    return {**kept, **{n: rate for n, rate in brief.items() if rate["value"] is not None}}


def store(found: Mapping[str, Any], folder: Path) -> Path:
    """Write the document into the output folder; RunnerError where it cannot be written."""
    path = folder / NAME
    with writing(str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def tell(found: Mapping[str, Any]) -> str:
    """Say the measurement on the wire, and return it as a sentence."""
    where = f"{found['processes']} x {found['device']}" if found["processes"] > 1 else str(found["device"])
    if found["matmul_tflops"] is None:
        text = f"no rate of {found['precision']} products on {where}: {found['matmul_why']}"
    else:
        text = f"{found['matmul_tflops']:.4g} TFLOP/s in {found['precision']} on {where}"
    wire.emit("diagnostic", level="info", code="calibrate", message=f"{text}.", data=dict(found))
    return text
