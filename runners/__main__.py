"""`python -m runners [--config FILE.json | --multirun] [stage=train] [KEY=VALUE...]`: one run's stages on a server.

With --config the file is the resolved configuration and only pydantic and the training stack are needed; without
it the KEY=VALUE overrides are composed with Hydra. Folders come from $EKVI_OUT and $EKVI_CACHE.
Exit codes: 0 done, 1 a stage failed, 2 configuration, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runners import provenance, wire  # noqa: F401 provenance notes the environment before libraries add to it
from runners.errors import ConfigurationError, RunnerError
from runners.process import Folders, Process

if TYPE_CHECKING:
    from runners.schema import RunConfig
    from runners.stages import Context

USAGE = """\
usage: python -m runners [--config FILE.json | --multirun] [stage=STAGE] [KEY=VALUE...]

  stage=STAGE           data, calibrate, train, wrap, purge, or all for data, train and wrap (default: train)
  --config FILE.json    a resolved configuration; then no other KEY=VALUE applies
  KEY=VALUE             overrides, composed with Hydra: training=cpu training.train_iters=20
  --multirun            a key may take several values, KEY=A,B or range(1,4): each combination is worked off after
                        the other, in a process of its own, with $EKVI_OUT/KEY=VALUE as its folder
  purge.dry_run=true    with stage=purge: only list what would be removed

EKVI_OUT (default ./output) is the run's own folder, EKVI_CACHE (default ./cache) is shared by runs.
More than one process: python -m torch.distributed.run --standalone --nproc-per-node N -m runners ...
"""
_ONE_OF_TWO = "Leave out one of the two."
EXIT_INTERRUPTED = 130
YIELD_S = 3.0


@dataclass(frozen=True)
class Arguments:
    """The command line. `overrides` are Hydra's."""

    stage: str = "train"
    config: str | None = None
    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    multirun: bool = False
    help: bool = False


def parse(argv: Sequence[str]) -> Arguments:
    """Read a command line; ConfigurationError names the argument that does not fit."""
    fields: dict[str, Any] = {}
    overrides: list[str] = []
    rest = iter(argv)
    for argument in rest:
        key, equals, value = argument.partition("=")
        if argument in ("-h", "--help"):
            return Arguments(help=True)
        if key == "--config":
            fields["config"] = value if equals else next(rest, "")
            if not fields["config"]:
                raise ConfigurationError("--config needs the name of a JSON file.")
        elif argument in ("-m", "--multirun"):
            fields["multirun"] = True
        elif key == "stage" and equals:
            fields["stage"] = value
        elif key == "purge.dry_run" and equals:
            if value not in ("true", "false"):
                raise ConfigurationError(f"purge.dry_run={value!r} is neither true nor false.")
            fields["dry_run"] = value == "true"
        elif not equals or argument.startswith("-"):
            raise ConfigurationError(f"{argument!r} is neither --config nor KEY=VALUE.", hint="See --help.")
        else:
            overrides.append(argument)
    _agree(fields, overrides)
    return Arguments(**fields, overrides=tuple(overrides))


def _agree(fields: dict[str, Any], overrides: Sequence[str]) -> None:
    """Raise ConfigurationError for arguments that do not go together."""
    if fields.get("multirun") and "config" in fields:
        raise ConfigurationError("--config names one configuration, so --multirun does not apply.", hint=_ONE_OF_TWO)
    if fields.get("multirun") and fields.get("dry_run"):
        raise ConfigurationError("purge.dry_run=true lists the folders of one run, not of --multirun.")
    if overrides and "config" in fields:
        raise ConfigurationError(
            f"--config names a resolved configuration, so {overrides[0]} does not apply.",
            hint=_ONE_OF_TWO,
        )


def read_config(path: str) -> RunConfig:
    """The resolved configuration in a JSON file; ConfigurationError says what in it cannot be used."""
    require_pydantic()
    from pydantic import ValidationError

    from runners.schema import RunConfig

    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return RunConfig.model_validate_json(text)
    except ValidationError as error:
        first, count = error.errors()[0], error.error_count()
        where = ".".join(str(part) for part in first["loc"])
        more = f" ({count - 1} more after it)" if count > 1 else ""
        raise ConfigurationError(f"{path}: {where + ': ' if where else ''}{first['msg']}{more}.") from error


def require_pydantic() -> None:
    """Raise ConfigurationError where pydantic is missing: nothing can be read without it."""
    try:
        import pydantic  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "pydantic is not installed for this Python.", hint="Install it: pip install pydantic."
        ) from None


def compose(overrides: Sequence[str]) -> RunConfig:
    """The configuration that `overrides` give over the shipped profiles; needs Hydra."""
    require_composition()
    from runners.compose import compose_run

    return compose_run(list(overrides))


def require_composition() -> None:
    """Raise ConfigurationError where pydantic, Hydra or what they need is missing."""
    require_pydantic()
    try:
        import runners.compose  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed for this Python, so KEY=VALUE cannot be composed.",
            hint="Install ekvi-cockpit, or hand over a resolved configuration with --config.",
        ) from error


def run_points(arguments: Arguments, process: Process) -> None:
    """Work a sweep off; ConfigurationError where torchrun started this, RunnerError where a point failed."""
    if process.launched:
        raise ConfigurationError(
            "--multirun starts each point as a process of its own, and this is one of torchrun's.",
            hint="Start torchrun once a point, or sweep with `ekvi-cockpit run --multirun`.",
            every_rank=True,
        )
    require_composition()
    from runners import sweep
    from runners.stages import expand

    expand(arguments.stage)  # an unknown one is told before the first point
    out = Folders.from_environment(os.environ).out
    sweep.run(sweep.points(arguments.overrides), arguments.stage, out)


def run_stage(name: str, context: Context) -> None:
    """Run one stage between its `stage` lines; only rank 0 speaks of them."""
    from runners import trouble
    from runners.stages import find

    say = context.process.first
    if say:
        wire.emit("stage", stage=name, status="start", message=None)
    try:
        with trouble.explained(context.config):
            outcome = find(name)(context)
    except BaseException as error:
        if say:
            told = str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
            wire.emit("stage", stage=name, status="failed", message=told)
        raise
    if say:
        wire.emit("stage", stage=name, status=outcome.status, message=outcome.message)


def run(arguments: Arguments, process: Process) -> None:
    """Run the stages that the command line names, in order; RunnerError where one cannot go on."""
    config = read_config(arguments.config) if arguments.config else compose(arguments.overrides)
    from runners.stages import Context, expand

    context = Context(
        config=config,
        process=process,
        folders=Folders.from_environment(os.environ),
        run=os.environ.get("EKVI_RUN") or None,
        dry_run=arguments.dry_run,
    )
    for name in expand(arguments.stage):
        run_stage(name, context)


def report(error: RunnerError, process: Process) -> None:
    """Say a foreseen error; what every rank sees is said by rank 0, for whom the others wait a moment: launchers
    end all processes when the first one has ended. Where none does, it is this node's alone, and its first says it.
    """
    if error.every_rank and not process.first:
        time.sleep(YIELD_S)
        if process.local_rank:
            return
    named = (error.every_rank and process.first) or process.world == 1 or str(error).startswith("rank ")
    who = "" if named else f"rank {process.rank}: "
    print(f"error: {who}{error}", file=sys.stderr, flush=True)
    data = {"kind": type(error).__name__, "rank": process.rank}
    wire.emit("diagnostic", level="error", code="error", message=f"{who}{error}", data=data)


def main(argv: Sequence[str] | None = None) -> int:
    """The command: returns the exit code. A foreseen error is one sentence on stderr and a diagnostic line."""
    process = Process()
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.help:
            print(USAGE, end="")
            return 0
        process = Process.from_environment(os.environ)
        (run_points if arguments.multirun else run)(arguments, process)
    except RunnerError as error:
        report(error, process)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def leave(code: int) -> NoReturn:
    """End the process; with torch loaded without the interpreter's own clean-up.

    gloo's threads may still hold tensors after the group was left, and abort a process that cleans up under them
    (pytorch issue 190489): a run that had succeeded would be FAILED by signal 6.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if "torch" in sys.modules:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
