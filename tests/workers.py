"""How several workers share the tests (`-n 2 --dist loadfile`, which make test and make test-hosts say).

A file stays on one worker, with its fixtures. Files of one group stay on one worker too: what they need exists once.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

_GROUPS = {
    "machines": (  # the pair of machines of tests/hosts/machines.py: their addresses and links are this machine's
        "test_build_ssh", "test_doctor_machines", "test_duel", "test_duel_lost", "test_duel_nodes",
        "test_duel_services", "test_machines", "test_run_machines", "test_twenty",
        # These two make the same routes, and their user without rights meets another engine beside a machine's.
        "test_doctor", "test_run_refused",
    ),
    "podman": ("test_agent_podman", "test_engine_words"),  # its locks are one for all its storage folders
}  # fmt: skip
GROUP_OF = {f"tests/hosts/{name}.py": group for group, names in _GROUPS.items() for name in names}
# Folders whose tests wait for processes: they are handed out early, so that no worker is left alone with a long file.
_LONG = ("agent", "engine", "hosts", "launch", "telemetry", "tui")


class Files(LoadFileScheduling):  # type: ignore[misc]
    """Files and groups of files, in the order of `longest_first`."""

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        return GROUP_OF.get(path, path)


def longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests: groups, files that train, files of folders that take long, all others."""
    trains = {item.path for item in items if item.get_closest_marker("train")}

    def rank(item: pytest.Item) -> int:
        marks = (item.location[0] in GROUP_OF, item.path in trains, item.path.parent.name in _LONG)
        return marks.index(True) if any(marks) else len(marks)

    items.sort(key=rank)


def check_group(items: Iterable[pytest.Item], fixture: str, group: str) -> None:
    """Refuse tests that use what exists once and are in no group: two workers would wait for each other."""
    for item in items:
        if fixture in getattr(item, "fixturenames", ()) and GROUP_OF.get(item.location[0]) != group:
            raise pytest.UsageError(f"{item.location[0]} uses {fixture}: add it to {group} in tests/workers.py")
