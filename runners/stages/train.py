"""stage=train: hands over to the runner that the configuration names."""

from __future__ import annotations

from runners.errors import ConfigurationError, require
from runners.schema import CommandRunner, LoraRunner, SmokeRunner
from runners.stages import Context, Outcome


def run(context: Context) -> Outcome:
    """Train. Raises ConfigurationError before anything heavy is imported where the stack is missing."""
    runner = context.config.runner
    if isinstance(runner, CommandRunner):
        raise ConfigurationError(
            "runner.name=command is started by the launcher itself, not by `python -m runners`.",
            hint="Run its argv directly.",
        )
    if isinstance(runner, SmokeRunner):
        require("torch")
        from runners import smoke

        return smoke.run(context)
    if isinstance(runner, LoraRunner):
        require("torch", "transformers", "peft")
        from runners import lora, mlperf

        return lora.run(context, mlperf.listeners(runner))
    require("torch", "megatron.core", "tokenizers")
    from runners import huggingface
    from runners.data import prepare, quiet
    from runners.megatron import grid

    grid.check(context.config.training.parallel, context.process)
    if context.process.local_rank == 0:  # what is missing is said before seconds of imports; train looks again
        huggingface.fetch(context.config)
        prepare.find(context.config.data, context.folders.cache)
    quiet.silence()  # before the import that speaks
    from runners.megatron import train

    return train.run(context)
