"""Rates of one device, each in several passes: matrix products, memory copies, transfers, all-reduce.

A pass repeats one call until the clock's grain does not count; the passes after a warm-up are what is reported. On
GPUs events of the device's own clock take the time. GPUs of both vendors are torch's device type "cuda".
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

PASSES = 9
WARM_UP = 3
LEAST_PASSES = 3  # of what takes long
MOST_S = 4.0  # for the passes of one measurement, once there are LEAST_PASSES
_PASS_S = {"cpu": 0.05}
_GPU_PASS_S = 0.15
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_COPY_BY = {"cpu": 256 << 20}
_GPU_COPY_BY = 2 << 30
_TRANSFER_BY = 256 << 20
_COLLECTIVE_BY = {"gloo": (64 << 10, 1 << 20, 16 << 20)}
_GPU_COLLECTIVE_BY = (1 << 20, 16 << 20, 128 << 20, 1 << 30)
_FP8_STEP = 16  # scaled products take sizes that are multiples of it
# AMD's first fp8 has no infinities and another bias (FNUZ); later parts and NVIDIA have the OCP format.
_HIP_FP8 = (("gfx94", "e4m3fnuz"), ("gfx95", "e4m3fn"), ("gfx12", "e4m3fn"))

Work = Callable[[], object]
Clock = Callable[[Work, int], float]


@dataclass(frozen=True)
class Unknown:
    """A rate that cannot be had here, and why."""

    why: str


@dataclass(frozen=True)
class Passes:
    """Seconds of one call, pass by pass."""

    seconds: tuple[float, ...]

    def rate(self, amount: float) -> dict[str, Any]:
        """`amount` a call as amounts a second: value (the median pass), least, greatest, and how many passes."""
        rates = [amount / s for s in self.seconds]
        return {
            "value": round(statistics.median(rates), 6),
            "least": round(min(rates), 6),
            "greatest": round(max(rates), 6),
            "passes": len(rates),
        }


def timed(work: Work, device: torch.device) -> Passes:
    """The passes of `work` on `device`."""
    clock = device_clock if device.type != "cpu" else host_clock
    repeats = repeats_for(work, clock, _PASS_S.get(device.type, _GPU_PASS_S))
    begin, seconds = time.perf_counter(), []
    for i in range(WARM_UP + PASSES):
        took = clock(work, repeats) / repeats
        slow = took > MOST_S / (WARM_UP + LEAST_PASSES)  # it has warmed up by its first call
        if i >= WARM_UP or slow:
            seconds.append(took)
        if len(seconds) >= LEAST_PASSES and time.perf_counter() - begin > MOST_S:
            break
    return Passes(tuple(seconds))


def repeats_for(work: Work, clock: Clock, least_s: float) -> int:
    """How many calls make a pass long enough; they warm the device up meanwhile."""
    clock(work, 1)  # the first call loads libraries and takes memory: its time says nothing
    repeats = 1
    while (seconds := clock(work, repeats)) < least_s and repeats < 1 << 20:
        repeats = max(repeats * 2, min(repeats * 100, int(repeats * least_s / max(seconds, 1e-9)) + 1))
    return repeats


def host_clock(work: Work, repeats: int) -> float:
    """Seconds of `repeats` calls by the host's clock."""
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return time.perf_counter() - begin


def device_clock(work: Work, repeats: int) -> float:
    """Seconds of `repeats` calls by the GPU's own clock."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


# -- matrix products


def product(shape: Sequence[int], precision: str, device: torch.device) -> dict[str, Any]:
    """TFLOP/s of one (m, n, k) product with random factors; 2 m n k operations."""
    m, n, k = shape
    a, b = _factors(m, n, k, device)
    if precision == "fp8":
        work = _scaled(a, b, getattr(torch, f"float8_{fp8_format(device)}"), device)
    else:
        dtype = DTYPES[precision]
        left, right = a.to(dtype), b.to(dtype)
        out = torch.empty(m, n, device=device, dtype=dtype)

        def work() -> object:
            return torch.mm(left, right, out=out)

    return {"m": m, "n": n, "k": k, **timed(work, device).rate(2.0 * m * n * k / 1e12)}


def _factors(m: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal fp32 [m, k] and [k, n], made where they are used: the host would take seconds for the large ones."""
    generator = torch.Generator(device=device).manual_seed(1234)
    return (
        torch.randn(m, k, generator=generator, device=device),
        torch.randn(k, n, generator=generator, device=device),
    )


def _scaled(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Work:
    """A product of fp8 factors with one scale each, into bf16, as a training's forward pass does it."""
    left, right = a.to(dtype), b.t().contiguous().to(dtype).t()  # the right factor is wanted column by column
    one = torch.ones((), device=device, dtype=torch.float32)

    def work() -> object:
        return torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return work


def fp8_format(device: torch.device) -> str | Unknown:
    """The fp8 format that `device` multiplies in, `e4m3fn` (OCP) or `e4m3fnuz`; Unknown where it has none."""
    if device.type == "cpu":
        return Unknown("fp8 products are not measured on a CPU")
    if not hasattr(torch, "_scaled_mm"):
        return Unknown(f"torch {torch.__version__} has no scaled product")
    if torch.version.hip is not None:
        arch = str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")).partition(":")[0]
        found = next((name for start, name in _HIP_FP8 if arch.startswith(start)), None)
        return found or Unknown(f"{arch or 'this GPU'} has no fp8 products that torch knows")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        return Unknown(f"compute capability {major}.{minor} has no fp8 products")
    return "e4m3fn"


def divisible(shape: Sequence[int]) -> bool:
    """Whether a scaled fp8 product takes this shape."""
    return all(size % _FP8_STEP == 0 for size in shape)


# -- memory


def copy(device: torch.device) -> dict[str, Any]:
    """GB/s of a copy within the device's memory: bytes read and bytes written, both counted."""
    size = _fitting(device, _COPY_BY.get(device.type, _GPU_COPY_BY), share=4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return {"bytes": size, **timed(lambda: target.copy_(source), device).rate(2.0 * size / 1e9)}


def transfers(device: torch.device) -> dict[str, dict[str, Any] | Unknown]:
    """GB/s from pinned host memory to the device and back, one way at a time."""
    if device.type == "cpu":
        why = Unknown("the CPU's memory is the host's")
        return {"host_to_device": why, "device_to_host": why}
    size = _fitting(device, _TRANSFER_BY, share=4)
    try:
        host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        said = Unknown(f"the host's memory cannot be pinned: {first_line(error)}")
        return {"host_to_device": said, "device_to_host": said}
    there = torch.empty(size, dtype=torch.uint8, device=device)
    up = timed(lambda: there.copy_(host, non_blocking=True), device)
    down = timed(lambda: host.copy_(there, non_blocking=True), device)
    return {
        "host_to_device": {"bytes": size, **up.rate(size / 1e9)},
        "device_to_host": {"bytes": size, **down.rate(size / 1e9)},
    }


def _fitting(device: torch.device, wanted: int, share: int) -> int:
    """`wanted` bytes, or a `share`th of what is free on a GPU where that is less; whole MiB."""
    if device.type == "cpu":
        return wanted
    free = int(torch.cuda.mem_get_info(device)[0])
    return max(1 << 20, min(wanted, free // share) >> 20 << 20)


# -- between processes


def all_reduce(device: torch.device, collective: str, world: int) -> list[dict[str, Any]]:
    """Bus GB/s of summing fp32 over all processes, a size at a time; every process calls it and times it.

    The bus rate is bytes x 2 (n - 1) / n over seconds: what each link carries in a ring, so that it can be set
    against a link's own rate whatever the number of processes.
    """
    found = []
    wanted = _COLLECTIVE_BY.get(collective, _GPU_COLLECTIVE_BY)
    room = -_greatest(
        -_fitting(device, wanted[-1], share=4), device
    )  # the same on all: another size would never meet
    for size in (size for size in wanted if size <= room):
        data = torch.zeros(size // 4, device=device)
        passes = _together(lambda data=data: dist.all_reduce(data), device)  # type: ignore[misc]
        found.append({"bytes": size, **passes.rate(size * 2 * (world - 1) / world / 1e9)})
    return found


def _together(work: Work, device: torch.device) -> Passes:
    """The passes of a collective call: the same number of calls everywhere, and the slowest process's time."""
    clock = device_clock if device.type != "cpu" else host_clock
    clock(work, 1)  # connections are made
    once = _greatest(clock(work, 2) / 2, device)
    least_s = _PASS_S.get(device.type, _GPU_PASS_S)
    repeats = max(1, min(1 << 16, int(least_s / max(once, 1e-7))))
    slow = once * repeats > MOST_S / (WARM_UP + PASSES)
    warm, passes = (0, LEAST_PASSES) if slow else (WARM_UP, PASSES)
    seconds = [_greatest(clock(work, repeats) / repeats, device) for _ in range(warm + passes)]
    return Passes(tuple(seconds[warm:]))


def _greatest(own: float, device: torch.device) -> float:
    """The greatest value over all processes."""
    told = torch.tensor(own, dtype=torch.float64, device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return float(told)


def first_line(error: BaseException) -> str:
    """What a library said, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
