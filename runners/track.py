"""Listeners that tell a training to TensorBoard and to MLflow, where the `export` extra is installed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runners import wire
from runners.errors import ConfigurationError, installed
from runners.listeners import Listener, Step

_LOGIN = re.compile(r"//[^/\s@]*@")  # in the address of a tracker's server, which its errors repeat
_MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow"}


def listeners(names: Iterable[str], out: Path, run: str | None) -> list[Listener]:
    """One for each of `names`, writing below `out`, or where MLFLOW_TRACKING_URI says.

    Raises ConfigurationError for a package that is not there.
    """
    made: list[Listener] = []
    for name in names:
        if not installed(_MODULES[name]):
            raise ConfigurationError(
                f"runner.track: {name} is not installed for this Python.",
                hint="Install the `export` extra: pip install 'ekvi-cockpit[export]'.",
            )
        made.append(TensorBoard(out / "tensorboard") if name == "tensorboard" else Mlflow(out / "mlruns", run))
    return [Guarded(listener) for listener in made]


def scalars(step: Step) -> dict[str, float]:
    """What of a step is a number, by the name it gets."""
    found = {
        "loss": step.loss,
        "learning_rate": step.rate,
        "grad_norm": step.grad_norm,
        "step_s": step.seconds,
        "tokens": float(step.tokens),
        "samples": float(step.samples),
        **step.extra,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


class Guarded(Listener):
    """Tells another listener, until it fails: what is only written down must not end a training."""

    def __init__(self, other: Listener) -> None:
        self.other: Listener | None = other

    def started(self, facts: Mapping[str, Any]) -> None:
        """Pass it on."""
        self._tell(lambda other: other.started(facts))

    def step(self, step: Step) -> None:
        """Pass it on."""
        self._tell(lambda other: other.step(step))

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """Pass it on."""
        self._tell(lambda other: other.evaluated(step, loss, samples, tokens))

    def finished(self, status: str) -> None:
        """Pass it on."""
        self._tell(lambda other: other.finished(status))

    def _tell(self, say: Callable[[Listener], None]) -> None:
        if self.other is None:
            return
        try:
            say(self.other)
        except Exception as error:  # noqa: BLE001 - a tracker's server, disk or library may fail in any way
            told = _LOGIN.sub("//", (str(error).strip() or type(error).__name__).splitlines()[0])
            name, self.other = type(self.other).__name__, None
            message = f"{name} is told no more of this training: {told}"
            wire.emit("diagnostic", level="warning", code="track", message=message, data={"tracker": name})


class TensorBoard(Listener):
    """Event files in a folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))

    def started(self, facts: Mapping[str, Any]) -> None:
        """The facts as a text, a row each."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
        self.writer.add_text("facts", f"| name | value |\n|---|---|\n{rows}", 0)

    def step(self, step: Step) -> None:
        """A point of each curve."""
        for name, value in scalars(step).items():
            self.writer.add_scalar(f"train/{name}", value, step.step)

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """A point of the validation's curve."""
        self.writer.add_scalar("validation/loss", loss, step)

    def finished(self, status: str) -> None:
        """Write out what is held back."""
        self.writer.close()


class Mlflow(Listener):
    """A run in MLflow: facts as parameters, steps as metrics."""

    def __init__(self, folder: Path, run: str | None) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is what a run without a server has
        import mlflow

        mlflow.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI") or folder.as_uri())
        self.mlflow: Any = mlflow
        self.name = run

    def started(self, facts: Mapping[str, Any]) -> None:
        """Begin the run."""
        self.mlflow.start_run(run_name=self.name)
        self.mlflow.log_params(dict(facts))

    def step(self, step: Step) -> None:
        """A point of each curve."""
        self.mlflow.log_metrics(scalars(step), step=step.step)

    def evaluated(self, step: int, loss: float, samples: int, tokens: int) -> None:
        """A point of the validation's curve."""
        self.mlflow.log_metric("validation_loss", loss, step=step)

    def finished(self, status: str) -> None:
        """End the run."""
        self.mlflow.end_run("FINISHED" if status == "success" else "FAILED")
