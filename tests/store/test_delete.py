"""Deleting runs and groups, and the lock that keeps one from a cockpit that follows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.core.errors import Exit, LaunchRefused, StoreError
from cockpit.store.store import Store
from tests.store.conftest import make_plan

GROUP = "20260131-093000-duel-4f2a"


def test_deleting_a_run_takes_it_out_of_its_group(store: Store) -> None:
    store.create(make_plan(), {})
    assert store.delete(f"{GROUP}.left.r1") == [f"{GROUP}.left.r1"]
    record = store.group(GROUP)
    assert f"{GROUP}.left.r1" not in record.runs
    assert f"{GROUP}.left.r1" not in record.queues[0]["runs"]
    assert len(store.plan(GROUP).runs) == 3
    for run in record.runs:
        store.delete(run)
    assert store.groups() == []
    assert sorted(p.name for p in store.root.iterdir() if not p.name.startswith("index")) == ["groups"]


def test_deleting_follows_no_link(store: Store, tmp_path: Path) -> None:
    store.create(make_plan(), {})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    run = store.run_dir(f"{GROUP}.left.r1")
    (run.path / "link").symlink_to(outside)
    store.delete(run.id)
    (store.root / "linked").symlink_to(outside)
    with pytest.raises(StoreError, match="is a link"):
        store.delete("linked")
    assert (outside / "keep").read_text() == "x"


def test_a_live_run_is_not_deleted_and_forced_it_is(store: Store) -> None:
    store.create(make_plan(), {})
    store.run_dir(f"{GROUP}.right.r2").update_meta(state="RUNNING")
    with pytest.raises(StoreError, match="is RUNNING: it is not deleted"):
        store.delete(GROUP)
    assert len(store.runs()) == 4
    assert len(store.delete(GROUP, force=True)) == 4


def test_a_damaged_run_can_be_deleted(store: Store) -> None:
    store.create(make_plan(), {})
    (store.root / f"{GROUP}.left.r1" / "run.json").write_text("{")
    store.delete(f"{GROUP}.left.r1")
    assert len(store.runs()) == 3


def test_what_a_crash_left_of_a_delete_is_invisible_and_swept(store: Store) -> None:
    store.create(make_plan(), {})
    left = store.root / f".trash-{GROUP}.left.r9.00"
    left.mkdir()
    (left / "run.json").write_text("{")
    assert len(store.runs()) == 4
    assert store.problems == ()
    store.delete(f"{GROUP}.left.r1")
    assert not left.exists()


# -- the lock

_HOLDER = """
import sys
from cockpit.store.rundir import RunDir
from cockpit.store.store import Store
lock = Store(sys.argv[1]).lock_group(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_cockpit_is_told_who_holds_the_group_and_a_killed_one_frees_it(store: Store) -> None:
    store.create(make_plan(), {})
    command = [sys.executable, "-c", _HOLDER, str(store.root), GROUP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LaunchRefused, match=rf"followed by another cockpit \(pid {holder.pid} on ") as refused:
            store.lock_group(GROUP)
        assert refused.value.exit_code == Exit.SERVER
        with pytest.raises(LaunchRefused):
            store.delete(GROUP)
        holder.send_signal(signal.SIGKILL)
    with store.lock_group(GROUP):
        assert len(store.runs()) == 4


def test_a_lock_that_is_closed_is_free(store: Store) -> None:
    store.create(make_plan(), {})
    store.lock_group(GROUP).close()
    lock = store.lock_group(GROUP)
    with pytest.raises(LaunchRefused, match=f"pid {os.getpid()}"):
        store.lock_group(GROUP)
    lock.close()
    lock.close()
