"""The command line. Importing it loads the standard library alone; each command loads what it needs."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cockpit.core.errors import CockpitError, Exit
from cockpit.core.text import printable

# What we draw, for terminals and pipes whose encoding has none of it (LC_ALL=C, Latin-1).
_PLAIN = {"─": "-", "━": "-", "╺": " ", "╸": " ", "…": "...", "✓": "v", "✗": "x", "▸": ">", "·": ".", "°": ""}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every foreseen error is one sentence on stderr."""
    from cockpit.cli.parser import parse

    _any_text()
    code = int(Exit.OK)
    try:
        try:
            args = parse(list(sys.argv[1:] if argv is None else argv))
            code = int(args.command(args))
        finally:
            sys.stdout.flush()  # here, where what goes wrong is told in a sentence, and not when Python ends
    except CockpitError as error:
        say_error(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("\nekvi-cockpit: interrupted\n")
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, but nothing more may be flushed there.
        _drop_output()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            return _broken_off(error)
        _drop_output()
        sys.stderr.write("ekvi-cockpit: the output cannot be written: no space left where it goes.\n")
        return int(Exit.USAGE)
    except Exception as error:  # noqa: BLE001  whatever it is, what it says may hold a secret
        return _broken_off(error)
    return code


def _broken_off(error: Exception) -> int:
    """An error of ours: a sentence here, its traceback without secrets in a file."""
    from cockpit.core import crash

    sys.stderr.write(crash.message(error, crash.write_report(error), what="the command"))
    return int(Exit.RUN_FAILED)


def _any_text() -> None:
    """Let every text be printed, whatever the encoding of stdout and stderr; where they are closed, nowhere."""
    codecs.register_error("ekvi", _plain)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="ekvi")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for text that an encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    wrong = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in wrong), error.end


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_error(error: CockpitError) -> None:
    """Print an error as the product prints all of them: `ekvi-cockpit: sentence hint` on stderr."""
    sys.stderr.write(f"ekvi-cockpit: {printable(str(error))}\n")


def script() -> None:
    """Entry point of the installed command."""
    sys.exit(main())
