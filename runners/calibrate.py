"""stage=calibrate: what this machine's own matrix product reaches, as the measure that a training is held against.

The shapes are those of the model's largest products (hidden x ffn and hidden x hidden, a micro batch of tokens), so
the figure says what the library gives for this work, not for a flattering square. A rate is 2 m n k over the time of
one product; each shape is timed in several passes after a warm-up, and the median pass counts. On GPUs events of the
device's own clock take the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from runners import wire
from runners.errors import ConfigurationError
from runners.schema import RunConfig

PASSES = 9
WARM_UP = 3
_PASS_S = {"cpu": 0.05, "cuda": 0.1}  # how long a pass lasts at least, so that the clock's grain does not count
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def shapes(config: RunConfig) -> list[tuple[int, int, int]]:
    """(m, n, k) of the products measured: tokens x ffn x hidden, tokens x hidden x ffn, tokens x hidden x hidden."""
    tokens = config.training.micro_batch * config.training.sequence_length
    hidden, ffn = config.model.hidden, config.model.ffn
    return [(tokens, ffn, hidden), (tokens, hidden, ffn), (tokens, hidden, hidden)]


def device_of(backend: str) -> torch.device:
    """The device of this process. Raises ConfigurationError where torch sees none of that family."""
    if backend == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"training.backend={backend}: torch {torch.__version__} sees no GPU here.",
            hint="See that the container was given the GPUs, and that torch was built for them.",
        )
    if (torch.version.hip is not None) != (backend == "rocm"):
        built = "ROCm" if torch.version.hip is not None else "CUDA"
        raise ConfigurationError(f"training.backend={backend}, but this torch was built for {built}.")
    return torch.device("cuda", torch.cuda.current_device())


def measure(config: RunConfig) -> dict[str, Any]:
    """`matmul_tflops` (the fastest shape's median, TFLOP/s), each shape's figures, and under which conditions."""
    training = config.training
    dtype = _DTYPES.get(training.precision)
    if dtype is None:
        raise ConfigurationError(
            f"stage=calibrate measures fp32, bf16 and fp16, not training.precision={training.precision}.",
            hint="Leave the stage out, or set training.precision for it.",
        )
    device = device_of(training.backend)
    if device.type == "cpu":
        torch.set_num_threads(training.threads)
    found = [_shape(shape, dtype, device) for shape in shapes(config)]
    best = max(found, key=lambda one: one["tflops"])
    return {
        "matmul_tflops": best["tflops"],
        "precision": training.precision,
        "passes": PASSES,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": training.threads if device.type == "cpu" else None,
        "shapes": found,
    }


def _shape(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """One product's rate: the median, least and greatest of the passes, in TFLOP/s."""
    m, n, k = shape
    generator = torch.Generator(device="cpu").manual_seed(1234)
    a = torch.randn(m, k, generator=generator).to(device=device, dtype=dtype)
    b = torch.randn(k, n, generator=generator).to(device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    clock = _device_clock if device.type == "cuda" else _host_clock

    def product() -> None:
        torch.mm(a, b, out=out)

    repeats = _repeats(product, clock, _PASS_S[device.type])
    seconds = list(_passes(product, clock, repeats))
    rates = [2.0 * m * n * k / s / 1e12 for s in seconds]
    return {
        "m": m,
        "n": n,
        "k": k,
        "tflops": round(statistics.median(rates), 6),
        "least": round(min(rates), 6),
        "greatest": round(max(rates), 6),
    }


Clock = Callable[[Callable[[], None], int], float]


def _repeats(product: Callable[[], None], clock: Clock, least_s: float) -> int:
    """How many products make a pass long enough; they warm the device up meanwhile."""
    clock(product, 1)  # the first product loads libraries and takes memory: its time says nothing
    repeats = 1
    while (seconds := clock(product, repeats)) < least_s and repeats < 1 << 20:
        repeats = max(repeats * 2, min(repeats * 100, int(repeats * least_s / max(seconds, 1e-9)) + 1))
    return repeats


def _passes(product: Callable[[], None], clock: Clock, repeats: int) -> Iterator[float]:
    """Seconds of one product, pass by pass, the warm-up left out."""
    for i in range(WARM_UP + PASSES):
        seconds = clock(product, repeats) / repeats
        if i >= WARM_UP:
            yield seconds


def _host_clock(product: Callable[[], None], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        product()
    return time.perf_counter() - begin


def _device_clock(product: Callable[[], None], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        product()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def tell(found: dict[str, Any]) -> str:
    """Say the measurement on the wire, and return it as a sentence."""
    text = f"{found['matmul_tflops']:.4g} TFLOP/s in {found['precision']} on {found['device']}"
    wire.emit("diagnostic", level="info", code="calibrate", message=f"{text}.", data=found)
    return text
