"""Names of all files under the runs folder, and where that folder is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from cockpit.core.errors import UsageError

RUN_SCHEMA: Final = "ekvi.run/1"
GROUP_SCHEMA: Final = "ekvi.group/1"
SUMMARY_SCHEMA: Final = "ekvi.summary/1"

META: Final = "run.json"
STDOUT: Final = "stdout.log"
EVENTS: Final = "events.jsonl"
TELEMETRY: Final = "telemetry.jsonl"
SUMMARY: Final = "summary.json"
ARTIFACTS: Final = "artifacts"
COLUMNS: Final = "columns.npz"  # a cache: may be deleted at any time
GROUPS: Final = "groups"
INDEX: Final = "index.sqlite"  # a cache: may be deleted at any time
TRASH: Final = ".trash-"  # what is being deleted; left there by a crash, it is cleared away by the next delete

_NODE = re.compile(r"(?:stdout|telemetry)\.node([1-9]\d{0,3})\.(?:log|jsonl)")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


def stdout_of(node: int) -> str:
    """The mirror of one node's output; the first node's has no number."""
    return f"stdout.node{node}.log" if node else STDOUT


def telemetry_of(node: int) -> str:
    """The mirror of one node's telemetry; the first node's has no number."""
    return f"telemetry.node{node}.jsonl" if node else TELEMETRY


def node_of(name: str) -> int:
    """The node whose mirror a file of that name is; 0 for every other file."""
    match = _NODE.fullmatch(name)
    return int(match[1]) if match else 0


def runs_root(flag: str | Path | None = None) -> Path:
    """The runs folder: `flag`, else $EKVI_RUNS_DIR, else ekvi-cockpit/runs in the user's data folder.

    It is not made here.
    """
    named = str(flag or "") or os.environ.get("EKVI_RUNS_DIR", "")
    if named:
        return Path(os.path.abspath(Path(named).expanduser()))  # noqa: PTH100 resolve() would follow links
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "ekvi-cockpit" / "runs"


def checked_id(ident: str) -> str:
    """`ident`, if it may name a file under the runs folder; else UsageError."""
    if not _ID.fullmatch(ident) or ident in (GROUPS, INDEX):
        raise UsageError(f"{ident!r} is not an id of a run or a group.", hint="`ekvi-cockpit runs` lists them.")
    return ident


def is_id(name: str) -> bool:
    """Whether a folder of that name under the runs folder may be a run."""
    return bool(_ID.fullmatch(name)) and name not in (GROUPS, INDEX)
