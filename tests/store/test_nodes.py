"""The folder of a run on several nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cockpit.core.events import Diagnostic, Event, Iteration
from cockpit.store.journal import Journal, read_events
from cockpit.store.rundir import RunDir
from cockpit.store.store import Store
from tests.store.conftest import make_plan


@pytest.fixture
def run(store: Store) -> RunDir:
    record = store.create(make_plan(), {})
    return store.run_dir(record.runs[0])


def test_each_node_has_files_of_its_own(run: RunDir) -> None:
    for node, name in enumerate(("stdout.log", "stdout.node1.log")):
        assert run.append_stdout(b"ab\nc", 0, node) == 4
        assert run.append_stdout(b"c\nd", 3, node) == 6
        assert (run.path / name).read_bytes() == b"ab\nc\nd"
        assert run.stdout_size_of(node) == 6
        assert run.read_stdout(1, 2, node) == b"b\n"
        assert run.read_stdout_to_line_end(0, 3, node) == b"ab\nc\n"
    run.append_telemetry(b'{"seq":0}\n')
    run.append_telemetry(b'{"seq":7}\n{"seq":', 1)
    assert [list(run.ticks(node)) for node in range(3)] == [[{"seq": 0}], [{"seq": 7}], []]
    assert (run.telemetry_size, run.telemetry_size_of(1), run.telemetry_size_of(2)) == (10, 17, 0)
    run.close()


def test_the_handle_says_how_many_nodes_there_are_else_the_files_do(run: RunDir) -> None:
    assert run.nodes == 1
    run.append_telemetry(b"{}\n", 2)
    assert run.nodes == 3
    run.update_meta(handle={"queue": "q", "nodes": [{"path": "/a"}, {"path": "/b"}]})
    assert run.nodes == 2


def test_sizes_deletion_and_recordings_hold_all_nodes(run: RunDir, store: Store, tmp_path: Path) -> None:
    before = store.size(run.id)
    run.append_stdout(b"x" * 1000, 0, 1)
    assert store.size(run.id) == before + 1000
    recorded = Store.open_readonly(store.root).run_dir(run.id)
    assert recorded.read_stdout(0, 5, 1) == b"xxxxx"
    run.close()
    store.delete(run.id, force=True)
    assert not run.path.exists()


def test_the_journal_counts_lines_by_node(tmp_path: Path) -> None:
    events: list[Event] = [
        Iteration(step=1, offset=5),
        Diagnostic(level="info", code="x", message='"node":1,"offset":7}\n', node=1, offset=5),
        Diagnostic(level="info", code="x", message="", data={"node": 2, "offset": 1}, offset=9),
        Diagnostic(level="info", code="x", message="", data={"node": 2, "offset": 1}),
        Iteration(step=2, node=12, offset=0),
    ]
    for _ in range(2):
        with Journal(tmp_path / "e", "r") as journal:
            journal.append(events)
            counted = [journal.line_events(node) for node in (0, 1, 2, 12)]
    assert counted == [4, 2, 0, 2]
    with Journal(tmp_path / "e", "r") as journal:
        assert [journal.line_events(node) for node in (0, 1, 2, 12)] == [4, 2, 0, 2]
    assert [e.node for e in read_events(tmp_path / "e")] == [0, 1, 0, 0, 12] * 2
