"""`python -m runners.data.convert OUT.jsonl KEY=VALUE...`: any source of records as JSONL, to fine-tune on say.

Tables, chats, downloads and data sets of the hub become one record a line, in the shapes that records.py names.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runners.data import sources
from runners.data.records import Record, Skips
from runners.errors import ConfigurationError, RunnerError, writing
from runners.process import Folders
from runners.schema import Data


def write(data: Data, cache: Path, target: Path) -> tuple[int, Skips]:
    """Write the records of `data` to `target`, whole or not at all; returns how many, and what was left out.

    Raises ConfigurationError for what cannot be read or holds no record, RunnerError for what cannot be written.
    """
    skips, count = Skips(), 0
    part = target.with_name(f".{target.name}.part")
    try:
        with writing(str(target)), open(part, "w", encoding="utf-8") as stream:
            for record in sources.records_of(data, cache, skips):
                stream.write(json.dumps(body(record), ensure_ascii=False) + "\n")
                count += 1
        if not count:
            raise ConfigurationError(f"data.source={data.source} holds no record.")
        with writing(str(target)):
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return count, skips


def body(record: Record) -> dict[str, object]:
    """The record as a line holds it."""
    if record.messages is not None:
        return {"messages": list(record.messages)}
    if record.completion is not None:
        return {"prompt": record.prompt, "completion": record.completion}
    return {"text": record.text}


def main(argv: Sequence[str]) -> int:
    """The command: returns the exit code."""
    from runners.__main__ import compose

    if not argv or "=" in argv[0]:
        print("usage: python -m runners.data.convert OUT.jsonl data.source=csv 'data.paths=[FILE]'", file=sys.stderr)
        return 2
    try:
        config = compose(argv[1:])
        count, skips = write(config.data, Folders.from_environment(os.environ).cache, Path(argv[0]))
    except RunnerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    left = f"; {skips.count} left out, the first {skips.first}" if skips.count else ""
    print(f"{count} records in {argv[0]}{left}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
