"""The agent's commands: work, start, status, stop, clean, list, sample, --version. Findings are JSON on stdout."""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Do one command: 0 done, 1 it cannot be done (one sentence says why), 2 it was called wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["shim"]:  # before anything heavy is imported
        from . import shim

        return shim.main()
    if words[:1] == ["container"]:
        from . import container

        return container.main(words[1:])
    if words[:1] == ["tidy"]:
        from . import tidy

        return tidy.main(words[1:])
    _fill_standard_files()
    from . import commands

    return commands.run(words)


def _fill_standard_files() -> None:
    """Let no file of ours take the number of a standard one that the caller has closed."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.dup(fd)
    os.close(fd)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
