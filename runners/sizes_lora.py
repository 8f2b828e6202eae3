"""The memory of a fine-tuning by transformers and peft on its fullest GPU, by parts. Pure arithmetic, no torch.

Rougher than the Megatron training's (runners/sizes.py): the layers are the library's own. It speaks of the model that
the `model` section describes, whatever folder the weights come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runners.schema import LoraRunner, RunConfig
from runners.sizes import (
    FIXED_BY,
    GIB,
    SPARE,
    WARNED,
    Advice,
    Memory,
    attention_matrices,
    feed_forward_matrices,
    parameters,
    vectors,
)

__all__ = ["GIB", "advice", "memory"]


def memory(config: RunConfig, vocab: int) -> Memory:
    """The estimate with `vocab` rows in the tables; for the LoRA runner. Frozen weights have no gradient."""
    runner, model = config.runner, config.model
    assert isinstance(runner, LoraRunner)
    world = runner.processes if runner.strategy == "fsdp" else 1
    every = parameters(model, vocab)
    trained = adapters(config) if runner.lora else every
    frozen = every if runner.lora else 0
    tokens = runner.batch * runner.seq_len
    state = {
        "weights": (frozen * _base(runner) + trained * 4) // world + _gathered(config, vocab),
        "gradients": trained * 4 // world,
        "optimizer": trained * 8 // world,
        "activations": int(tokens * _kept(config)),
        "logits": tokens * vocab * (_compute(runner) + 8),  # and twice in fp32: as numbers and as gradients
    }
    fixed = FIXED_BY[config.training.backend] + int(SPARE * sum(state.values()))
    return Memory(stage=0, master=0, allowance=fixed, **state)


def adapters(config: RunConfig) -> int:
    """Parameters of all adapters: `r` rows and columns beside each target module that the model's shape tells."""
    runner, model = config.runner, config.model
    assert isinstance(runner, LoraRunner)
    head = model.hidden // model.heads
    query, both = head * model.heads, head * model.kv_heads
    sizes = {
        "q_proj": model.hidden + query,
        "k_proj": model.hidden + both,
        "v_proj": model.hidden + both,
        "qkv_proj": model.hidden + query + 2 * both,
        "o_proj": query + model.hidden,
        "gate_proj": model.hidden + model.ffn,
        "up_proj": model.hidden + model.ffn,
        "down_proj": model.ffn + model.hidden,
    }
    every = set(sizes) - {"qkv_proj"}
    targets = every if "all-linear" in runner.target_modules else set(runner.target_modules)
    return model.layers * runner.r * sum(sizes.get(target, 0) for target in targets)


def _base(runner: LoraRunner) -> int:
    """Bytes of a frozen weight."""
    auto = "bf16" if runner.bf16 else "fp32"
    return 2 if (auto if runner.base_dtype == "auto" else runner.base_dtype) == "bf16" else 4


def _compute(runner: LoraRunner) -> int:
    return 2 if runner.bf16 else 4


def _gathered(config: RunConfig, vocab: int) -> int:
    """What FSDP puts together at a time: a layer and the next, and the tables all along. Else the cast copies."""
    runner, model = config.runner, config.model
    assert isinstance(runner, LoraRunner)
    layer = attention_matrices(model) + feed_forward_matrices(model) + vectors(model)
    if runner.strategy == "fsdp":
        return (2 * layer + (1 if model.tied_embeddings else 2) * vocab * model.hidden) * _compute(runner)
    cast = runner.bf16 and _base(runner) == 4  # autocast keeps a step's copies
    return 2 * (model.layers * layer + vocab * model.hidden) if cast else 0


def _kept(config: RunConfig) -> float:
    """Bytes a token that the backward needs: all of every layer, or each layer's input and all of one."""
    runner, model = config.runner, config.model
    assert isinstance(runner, LoraRunner)
    element, hidden = _compute(runner), model.hidden
    both = 2 * hidden * model.kv_heads / model.heads
    # Norms in fp32 with their inputs and outputs; query, key, value before and after their rotation; the gated part.
    whole = 4 * hidden * 4 + element * (2 * hidden + 3 * hidden + 2 * both + 4 * model.ffn)
    if runner.lora and runner.dropout:
        whole += (element + 1) * hidden * len(runner.target_modules)  # its input after dropout, and the mask
    if runner.gradient_checkpointing:
        return model.layers * hidden * element + whole
    return model.layers * whole


def advice(config: RunConfig, vocab: int, capacity: int) -> list[Advice]:
    """What to change so that the estimate fits `capacity` bytes, in order; all of it may not be enough."""
    found: list[Advice] = []
    now = memory(config, vocab).total
    for name, value in _changes(config.runner):
        if now <= WARNED * capacity:
            break
        changed = config.model_copy(update={"runner": config.runner.model_copy(update={name: value})})
        then = memory(changed, vocab).total
        if now - then > 0.01 * now:
            found.append(Advice(f"runner.{name}", value, now - then))
            config, now = changed, then
    return found


def _changes(runner: Any) -> Iterator[tuple[str, object]]:
    yield "bf16", True
    yield "gradient_checkpointing", True
    if runner.processes > 1:
        yield "strategy", "fsdp"
    if runner.batch > 1:
        yield "batch", 1
    if not runner.lora:
        yield "lora", True
