"""Published facts: peaks of GPUs (data/gpu_specs.csv) and training speeds (data/published.csv), each with its source.

A model name that is not surely one of the table's has no peak, and so no MFU, rather than a guessed one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"
TABLE = "gpu_specs.csv"

# What drivers call a card -> the row of gpu_specs.csv. Matched on the whole normalised name: a laptop part, a "D"
# variant or a card of the same family with another clock must not take the peak of its neighbour.
_ALIASES: tuple[tuple[str, str], ...] = (
    (r"a100 sxm4 80gb", "A100 SXM4 80GB"),
    (r"h100 80gb hbm3|h100 sxm5( 80gb)?", "H100 SXM5"),
    (r"h100 pcie", "H100 PCIe"),
    (r"h100 nvl", "H100 NVL"),
    (r"h200|h200 sxm5?( 141gb)?", "H200 SXM"),
    (r"h200 nvl( 141gb)?", "H200 NVL"),
    (r"b200( sxm)?( 180gb)?", "B200 (HGX/DGX)"),
    (r"gb200", "GB200 (per GPU)"),
    (r"b300( sxm6?)?( ac)?( 270gb)?", "B300 (HGX)"),
    (r"gb300", "GB300 (per GPU)"),
    (r"l40s", "L40S"),
    (r"rtx 4090", "RTX 4090"),
    (r"rtx 5090", "RTX 5090"),
    (r"mi250x( oam)?( mcm)?", "MI250X"),
    (r"mi300x( oam)?", "MI300X"),
    (r"mi325x( oam)?", "MI325X"),
    (r"mi350x( oam)?", "MI350X"),
    (r"mi355x( oam)?", "MI355X"),
)
_NOISE = re.compile(r"\b(nvidia|amd|instinct|geforce|tensor core|gpu)\b")
_DIES = {"MI250X": 2}  # software sees each die as a device, the table holds the whole module

_PRECISION_COLUMN = {"bf16": "bf16_dense_tflops", "fp16": "fp16_dense_tflops", "fp8": "fp8_dense_tflops"}


_MEASURED = re.compile(r"(BF16|FP16|FP8)(?: GEMM)? (\d+(?:\.\d+)?)(?: @(\d+\^3))?")


@dataclass(frozen=True, slots=True)
class Measured:
    """What somebody measured on such a card: TFLOP/s, and `where` (shape and source)."""

    tflops: float
    where: str


@dataclass(frozen=True, slots=True)
class Spec:
    """Dense peaks of one device as software sees it, in TFLOP/s by precision; absent where no source gives one.

    `measured` are matrix products on such a card by precision, `mem_bw_gb_s` its memory's rate in GB/s,
    `mem_by` its size in bytes: what makers call a GB of it are 1,073,741,824, up to what the driver keeps.
    """

    name: str
    peaks: dict[str, float]
    tdp_w: float | None
    source: str
    mem_bw_gb_s: float | None = None
    measured: Mapping[str, Measured] = field(default_factory=dict)
    mem_by: int | None = None

    def peak_tflops(self, precision: str) -> float | None:
        """The dense peak for `precision` ("bf16", "fp16", "fp8"), or None.

        fp32 has none: whether it runs on tensor cores as TF32 is a run-time setting that a name does not tell.
        """
        return self.peaks.get(precision)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@cache
def _specs() -> dict[str, Spec]:
    with (_DATA / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    out = {}
    for row in rows:
        dies = _DIES.get(row["gpu"], 1)
        known = {p: _number(row[column]) for p, column in _PRECISION_COLUMN.items()}
        out[row["gpu"]] = Spec(
            name=row["gpu"],
            peaks={p: value / dies for p, value in known.items() if value is not None},
            tdp_w=_number(row["tdp_w"]),
            source=row["source"],
            mem_bw_gb_s=None if (rate := _number(row["mem_bw_tb_s"])) is None else rate * 1000 / dies,
            measured=_measured(row["measured_gemm"]),
            mem_by=None if (size := _number(row["mem_gb"])) is None else int(size * 2**30 / dies),
        )
    return out


def _measured(text: str) -> dict[str, Measured]:
    """`BF16 GEMM 853 @8192^3, FP8 1661 (who)` by precision."""
    source = re.search(r"\(([^)]*)\)\s*$", text)
    who = source[1] if source else "no source"
    return {
        found[1].lower(): Measured(float(found[2]), f"{found[3]}, {who}" if found[3] else who)
        for found in _MEASURED.finditer(text)
    }


def _normal(model: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", model.lower())
    return " ".join(_NOISE.sub(" ", words).split())


def gpu_spec(model: str | None) -> Spec | None:
    """The spec of the card that a driver calls `model`, e.g. "NVIDIA H100 80GB HBM3"; None where it is not known."""
    if not model:
        return None
    name = _normal(model)
    for pattern, row in _ALIASES:
        if re.fullmatch(pattern, name):
            return _specs().get(row)
    return None


@cache
def _published() -> tuple[dict[str, str], ...]:
    with (_DATA / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _model_key(name: str) -> str:
    """`llama31_8b` and `Llama-3.1-8B` alike; Llama 3 and 3.1 have the same shape at 8B and 70B."""
    key = re.sub(r"[^a-z0-9]", "", name.lower().split("(")[0])
    return re.sub(r"^llama31(?=8b|70b)", "llama3", key)


def published(model: str, gpu: str | None, sequence_length: int | None) -> list[dict[str, Any]]:
    """Published training speeds of `model` on `gpu` at `sequence_length`, with source and FLOP convention.

    Rows without tokens/s a GPU are left out. Empty where the GPU is unknown or nobody published that pair.
    """
    spec = gpu_spec(gpu)
    if spec is None:
        return []
    family = _normal(spec.name).split()[0]
    out: list[dict[str, Any]] = []
    for row in _published():
        speed = _number(row["tokens_s_gpu"])
        same_length = sequence_length is None or _number(row["seq_len"]) == sequence_length
        other = gpu_spec(row["gpu"])
        same_gpu = other.name == spec.name if other else _normal(row["gpu"]).split()[:1] == [family]
        if speed is None or not same_length or not same_gpu or _model_key(row["model"]) != _model_key(model):
            continue
        out.append(
            {
                "model": row["model"],
                "gpu": row["gpu"],
                "gpus": _number(row["n_gpus"]),
                "framework": row["framework"],
                "precision": row["precision"],
                "sequence_length": _number(row["seq_len"]),
                "tokens_per_s_gpu": speed,
                "tflops_gpu": _number(row["tflops_gpu"]),
                "flop_convention": row["flop_convention"] or None,
                "quality": row["quality"],
                "source": row["source"],
            }
        )
    return out
