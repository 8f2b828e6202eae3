"""stage=data: prepare the tokens once; later calls find them without importing torch."""

from __future__ import annotations

from runners import wire
from runners.errors import require
from runners.schema import LoraRunner, MegatronRunner
from runners.stages import Context, Outcome


def run(context: Context) -> Outcome:
    """Prepare the data of a Megatron or a LoRA run in the cache, and bring a model's published weights there; the
    other runners bring their own.

    Rank 0 of a node only.
    """
    if isinstance(context.config.runner, LoraRunner):
        if context.process.local_rank != 0:
            return Outcome("skipped")
        require("torch", "transformers", "tokenizers")
        from runners import lora

        return lora.prepare(context)
    if not isinstance(context.config.runner, MegatronRunner):
        return Outcome("skipped", f"the {context.config.runner.name} runner brings its own data")
    if context.process.local_rank != 0:
        return Outcome("skipped")
    from runners import huggingface
    from runners.data import prepare

    huggingface.fetch(context.config)
    entry, made = prepare.ensure(context.config.data, context.folders.cache)
    if context.process.first:
        wire.emit("diagnostic", **entry.diagnostic())
    if entry.format == "mock":
        return Outcome("skipped", "mock data needs no preparation")
    return Outcome("done", entry.told) if made else Outcome("skipped", f"already prepared: {entry.told}")
