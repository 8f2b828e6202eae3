"""The command line. Importing it loads the standard library alone; each command loads what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cockpit.core.errors import CockpitError, Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every foreseen error is one sentence on stderr."""
    from cockpit.cli.parser import parse

    try:
        args = parse(list(sys.argv[1:] if argv is None else argv))
        return int(args.command(args))
    except CockpitError as error:
        say_error(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\nekvi-cockpit: interrupted\n")
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, but nothing more may be flushed there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)


def say_error(error: CockpitError) -> None:
    """Print an error as the product prints all of them: `ekvi-cockpit: sentence hint` on stderr."""
    sys.stderr.write(f"ekvi-cockpit: {error}\n")


def script() -> None:
    """Entry point of the installed command."""
    sys.exit(main())
