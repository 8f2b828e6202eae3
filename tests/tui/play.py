"""A scripted duel on the real screen, to look at: `python -m tests.tui.play [rate=20] [lines=0] [gpus=0] ...`."""

from __future__ import annotations

import os
import sys

from cockpit.engine.observer import Observer, Outcome
from cockpit.tui import run_app
from tests.tui.scripted import Duel


class Broken(Duel):
    """A session with a mistake in it, and a secret in its locals and its message."""

    async def run(self, observer: Observer) -> Outcome:
        """Fail as no session should."""
        token = os.environ["HF_TOKEN"]
        observer.begin(self.info)
        raise RuntimeError(f"a mistake with {token}")


def main(words: list[str]) -> int:
    """Open the screen; `welcome` opens it without a session, `broken` with a broken one."""
    options = dict(w.split("=", 1) for w in words if "=" in w)

    def make() -> Duel:
        return (Broken if "broken" in words else Duel)(
            options.get("servers", "left,right").split(","),
            repeats=int(options.get("repeats", "3")),
            total=int(options.get("total", "120")),
            rate=float(options.get("rate", "20")),
            lines=float(options.get("lines", "0")),
            gpus=int(options.get("gpus", "0")),
            tick_hz=float(options.get("hz", "2")),
            together="together" in words,
            live="replay" not in words,
        )

    return run_app(None if "welcome" in words else make, demo=make, theme=options.get("theme"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
