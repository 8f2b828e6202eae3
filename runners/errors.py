"""Errors that a runner foresees: one clear sentence, an exit code, no traceback.

RunnerError              exit 1   the work could not be done
└── ConfigurationError   exit 2   the configuration, the command line, the environment or a missing package

`every_rank` marks a cause that all processes of a run see alike, so that only rank 0 says it.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2

_INSTALL = "Install the `train` extra: pip install 'ekvi-cockpit[train]'."
_WORKS = "What works on this machine: the demo (replay demo), import, compare, and training on remote servers."
_WHEELS = {("Linux", "x86_64"), ("Linux", "aarch64")}  # what megatron-core is published for


class RunnerError(Exception):
    """A failure with a sentence for the user; `hint` says how to fix it."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, *, hint: str | None = None, every_rank: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.every_rank = every_rank

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class ConfigurationError(RunnerError):
    """What was asked for cannot be done as it was asked."""

    exit_code = EXIT_CONFIGURATION


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an OSError into the RunnerError that says that `what` (a folder or file, named) cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunnerError(f"{what} cannot be written: {error.strerror or error}.") from error


def installed(module: str) -> bool:
    """Whether `module` (dotted) can be found, without importing it or running any of its code but its parents'."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(*modules: str) -> None:
    """Raise ConfigurationError with what to install where one of the training stack's modules is missing.

    Looks `megatron.core` up by its folder only: importing it takes seconds.
    """
    for module in modules:
        if installed(module):
            continue
        if module == "megatron.core":
            raise ConfigurationError(*_no_megatron(), every_rank=True)
        what = "PyTorch (torch)" if module == "torch" else module
        raise ConfigurationError(f"{what} is not installed for this Python.", hint=_INSTALL, every_rank=True)


def _no_megatron(system: str | None = None, machine: str | None = None) -> tuple[str]:
    system, machine = system or platform.system(), machine or platform.machine()
    if (system, machine) in _WHEELS:
        return (f"megatron-core is not installed for this Python. {_INSTALL}",)
    return (f"megatron-core has no wheel for {system} {machine}, so its training cannot run here. {_WORKS}",)
