"""Write a package to standard output, as a dry run's commands do: `python -m cockpit.telemetry agent > FILE`."""

from __future__ import annotations

import sys

from cockpit.core.errors import CockpitError, Exit
from cockpit.telemetry.pack import build_agent, build_code

_BUILD = {"agent": build_agent, "code": build_code}


def main(argv: list[str]) -> int:
    """Print the bytes of `agent` or `code`; anything else is a usage error."""
    if len(argv) != 1 or argv[0] not in _BUILD:
        sys.stderr.write("usage: python -m cockpit.telemetry agent|code > FILE\n")
        return int(Exit.USAGE)
    try:
        package = _BUILD[argv[0]]()
    except CockpitError as e:
        sys.stderr.write(f"{e}\n")
        return int(e.exit_code)
    sys.stdout.buffer.write(package.data)
    return int(Exit.OK)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
