"""stage=calibrate: measures this server's devices, one process a device, all of them at once."""

from __future__ import annotations

from runners.errors import ConfigurationError, require
from runners.schema import CommandRunner
from runners.stages import Context, Outcome


def run(context: Context) -> Outcome:
    """Measure, keep it as an artifact, and say it. Raises ConfigurationError where torch or the device is missing."""
    if isinstance(context.config.runner, CommandRunner):
        raise ConfigurationError(
            "stage=calibrate measures with our own runners' torch, which runner.name=command does not bring.",
            hint="Take another runner for this stage.",
            every_rank=True,
        )
    require("torch")
    from runners import calibrate
    from runners.stages.wrap import artifact

    found = calibrate.measure(context.config, context.process)
    if not context.process.first:
        return Outcome()
    artifact(context.folders.out, calibrate.store(found, context.folders.out))
    return Outcome("done", calibrate.tell(found))
