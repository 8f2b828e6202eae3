"""Will a training fit its GPUs? The estimate by parts, before anything is started, against what a card holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cockpit.core.records import RunPlan, ServerSpec
from cockpit.engine.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from cockpit.hosts.look import Gpus
    from runners.schema import RunConfig
    from runners.sizes import Memory

CHECK = "gpu memory"
_GIB = 2**30
_SHOWN = 4  # parts that are named
_CHANGES = 3  # changes that are proposed


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the largest of some runs takes of its fullest GPU; `vocab` is the padded table that it was made with.

    `rough`: of layers that are a library's, and of a model that may be another one than its name says.
    """

    run: RunPlan
    config: RunConfig
    vocab: int
    memory: Memory
    rough: bool = False

    def __str__(self) -> str:
        parts = [f"{name} {by / _GIB:.1f}" for name, by in self.memory.parts.items() if by >= 0.05 * _GIB]
        rest = len(parts) - _SHOWN
        told = ", ".join([*parts[:_SHOWN], *([f"{rest} more"] if rest > 0 else [])])
        point = ", ".join(f"{key}={value}" for key, value in self.run.sweep.items())
        name = f"{self.config.model.name}{f' with {point}' if point else ''}"
        return f"{name} takes about {self.memory.total / _GIB:.1f} GiB of a GPU ({told})"


def estimate(runs: Sequence[RunPlan]) -> Estimate | None:
    """The largest of the runs' trainings; None where none of them is one whose memory can be told beforehand."""
    found = [made for run in runs if (made := _of(run)) is not None]
    return max(found, key=lambda one: one.memory.total, default=None)


def _of(run: RunPlan) -> Estimate | None:
    if run.config["runner"]["name"] not in ("megatron", "lora") or all(s.stage != "train" for s in run.stages):
        return None
    from runners import sizes, sizes_lora
    from runners.schema import LoraRunner, Model, RunConfig

    config = RunConfig.model_validate(run.config)
    asked = config.model.vocab or config.data.tokenizer_vocab
    vocab = sizes.padded_vocab(asked, config.model.vocab_multiple, config.training.parallel.tensor)
    if not isinstance(config.runner, LoraRunner):
        return Estimate(run, config, vocab, sizes.memory(config, vocab))
    named = config.runner.model or config.runner.model_local_dir or config.model.weights
    if named and config.model.name == Model().name:
        return None  # whose shape stands in a folder that is not here
    return Estimate(run, config, vocab, sizes_lora.memory(config, vocab), rough=True)


def capacity(gpus: Gpus, server: ServerSpec) -> int | None:
    """Bytes of the smallest GPU that a run could get, by the driver, else by its name; None where neither tells."""
    from cockpit.metrics.specs import gpu_spec

    told: Mapping[int, int | None] = dict(enumerate(gpus.memory_by))
    wanted = list(told) if server.gpus is None else [index for index in server.gpus if index in told]
    known = [by for index in wanted if (by := told[index])]
    if known:
        return min(known)
    specs = [spec.mem_by for model in gpus.models if (spec := gpu_spec(model)) is not None and spec.mem_by]
    return min(specs, default=None)


def fit(runs: Sequence[RunPlan], gpus: Gpus | None, server: ServerSpec) -> Iterator[Finding]:
    """Whether the runs' trainings fit: `fail` where they surely do not, with what to reduce."""
    found = estimate(runs)
    if found is None or server.vendor == "cpu":
        return
    from runners import sizes

    card = None if gpus is None else capacity(gpus, server)
    if card is None:
        yield ok(CHECK, f"{found}; how much a GPU there has is not known")
        return
    text = f"{found}, which has {card / _GIB:.1f}"
    share = found.memory.total / card
    if share < sizes.WARNED:
        yield ok(CHECK, text)
        return
    judge = fail if share >= sizes.REFUSED and not found.rough else warn
    yield judge(CHECK, f"{text}.", mend(found, card))


def mend(found: Estimate, card: int) -> str:
    """What to change so that it fits, the cheapest first."""
    from runners import sizes, sizes_lora

    advice = sizes_lora.advice if found.rough else sizes.advice
    changes = advice(found.config, found.vocab, card)
    if not changes:
        return "Take more GPUs, or a smaller model."
    told = "; ".join(str(change) for change in changes[:_CHANGES])
    return f"What would help: {told}."
