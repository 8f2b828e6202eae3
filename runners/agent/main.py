"""The agent's commands: work, start, status, stop, clean, sample, shim, --version. Findings are JSON on stdout."""

from __future__ import annotations

import sys
from typing import Optional, Sequence


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Do one command: 0 done, 1 it cannot be done (one sentence says why), 2 it was called wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["shim"]:  # before anything heavy is imported
        from . import shim

        return shim.main()
    from . import commands

    return commands.run(words)
