"""Names in the agent's folder on a server, as the cockpit writes them (docs/design/contracts.md draws the tree)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def agent_file(workdir: str, sha256: str) -> str:
    """The agent, by the hash of its bytes."""
    return f"{workdir}/bin/agent-{sha256[:16]}.pyz"


def code_file(workdir: str, sha256: str) -> str:
    """The runners' source, by the hash of its bytes; the agent unpacks it beside."""
    return f"{workdir}/code/{sha256[:16]}.zip"


def files_file(workdir: str, sha256: str) -> str:
    """A local file or folder that a server's `files` names, packed, by its hash; the agent unpacks it beside."""
    return f"{workdir}/files/{sha256[:16]}.zip"


def data_folder(workdir: str) -> str:
    """Prepared data, an entry a folder."""
    return f"{workdir}/cache/data"


def secret_file(queue: str, name: str) -> str:
    """One secret's value."""
    return f"{queue}/secrets/{name}"


def queue_folder(workdir: str, group: str, key: str) -> str:
    """The folder of one queue of one group ("Q")."""
    return f"{workdir}/groups/{group}.{key}"


def workdir_of(queue: str) -> str:
    """The work folder that a queue's folder stands in."""
    return queue.rsplit("/", 2)[0]


def queue_file(queue: str) -> str:
    """The queue itself."""
    return f"{queue}/queue.json"


def launch_file(queue: str) -> str:
    """Which .pyz and which Python serve this queue."""
    return f"{queue}/launch.json"


def config_file(queue: str, run: str) -> str:
    """A run's resolved configuration."""
    return f"{queue}/runs/{run}/config.json"


def stop_file(queue: str, run: str | None) -> str:
    """The wish to stop one run, or all."""
    return f"{queue}/control/stop" if run is None else f"{queue}/control/stop.{run}"


def document(obj: Mapping[str, Any]) -> str:
    """A JSON file as the cockpit writes it on a server: readable, keys in their order, a newline at the end.

    Raises ValueError on NaN and infinities.
    """
    return json.dumps(obj, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
