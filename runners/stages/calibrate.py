"""stage=calibrate: measures this machine's matrix products; rank 0 of a node only."""

from __future__ import annotations

from runners.errors import ConfigurationError, require
from runners.schema import CommandRunner
from runners.stages import Context, Outcome


def run(context: Context) -> Outcome:
    """Measure, and say it. Raises ConfigurationError where torch or the device is missing."""
    if isinstance(context.config.runner, CommandRunner):
        raise ConfigurationError(
            "stage=calibrate measures with our own runners' torch, which runner.name=command does not bring.",
            hint="Take another runner for this stage.",
        )
    if not context.process.first:
        return Outcome("skipped")
    require("torch")
    from runners import calibrate

    return Outcome("done", calibrate.tell(calibrate.measure(context.config)))
