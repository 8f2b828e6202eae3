"""The runs folder as a whole."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.core.errors import StoreError, UsageError
from cockpit.store import layout
from cockpit.store.errors import DiskFull
from cockpit.store.journal import raw_lines
from cockpit.store.resolve import Want
from cockpit.store.rundir import RunDir
from cockpit.store.store import Store
from tests.store.conftest import make_plan

GROUP = "20260131-093000-duel-4f2a"


def test_a_new_group_is_read_back_as_it_was_planned(store: Store) -> None:
    plan = make_plan()
    store.create(
        plan,
        {"q1": {"host": "h"}},
        queues=[{"key": "q1", "path": "/srv/q"}],
        totals={f"{GROUP}.left.r1": 3},
        theme="rainbow",
        tags=("a",),
    )
    record = store.group(GROUP)
    assert (record.runs, record.theme, record.overrides) == (tuple(r.run for r in plan.runs), "rainbow", ("a=1",))
    assert (record.queues[0]["path"], record.queues[0]["runs"]) == ("/srv/q", list(record.runs))
    assert store.plan(GROUP) == replace(plan, theme="rainbow")
    meta = store.run_dir(f"{GROUP}.left.r1").meta()
    assert (meta["schema"], meta["state"], meta["vendor"], meta["total"]) == ("ekvi.run/1", "PLANNED", "cpu", 3)
    assert meta["gpus"] == [0, 1]  # a speed a GPU is of these, whatever else the machine has
    assert (meta["provenance"], meta["handle"], meta["tags"]) == ({"host": "h"}, {"queue": "q1"}, ["a"])
    assert (meta["config"], meta["sweep"]) == (plan.runs[0].config, {"training.learning_rate": "1e-4"})


def test_a_group_that_cannot_be_made_whole_leaves_nothing(
    store: Store, full_at: Callable[[int], AbstractContextManager[None]]
) -> None:
    with full_at(600), pytest.raises(DiskFull):
        store.create(make_plan(), {})
    assert [p.name for p in store.root.iterdir()] == ["groups"]
    assert store.groups() == []
    store.create(make_plan(), {})
    with pytest.raises(StoreError, match="there already"):
        store.create(make_plan(), {})
    assert len(store.runs()) == 4


def test_runs_done_again_take_the_places_of_the_old_ones(store: Store) -> None:
    store.create(make_plan(), {})
    old = f"{GROUP}.right.r1"
    again = make_plan(repeats=1)
    (queue,) = again.queues
    new = replace(queue.runs[1], run=f"{old}.try2")
    plan = replace(again, queues=(replace(queue, key="q1.try2", runs=(new,)),))
    record = store.extend(plan, {"q1.try2": {"x": 1}}, replaced={old: new.run})
    assert record.runs == (f"{GROUP}.left.r1", new.run, f"{GROUP}.left.r2", f"{GROUP}.right.r2")
    assert [q["key"] for q in store.group(GROUP).queues] == ["q1", "q1.try2"]
    assert store.run_dir(new.run).meta()["provenance"] == {"x": 1}
    assert len(store.delete(GROUP)) == 5
    assert store.runs() == []


def test_a_run_keeps_what_it_is_told(store: Store) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    assert run.update_meta(state="RUNNING")["state"] == "RUNNING"
    assert run.meta()["server"] == "left"
    assert (run.summary(), run.has_summary) == (None, False)
    run.write_summary({"id": run.id})
    assert (run.summary(), run.has_summary) == ({"schema": "ekvi.summary/1", "id": run.id}, True)
    run.append_stdout(b"one\ntwo\nthree\n", 0)
    assert run.read_stdout_to_line_end(0, 4) == b"one\ntwo\n"
    assert run.read_stdout_to_line_end(4, 8) == b"two\nthree\n"
    assert run.read_stdout_to_line_end(14, 14) == b""
    run.append_telemetry(b'{"type":"hello"}\n{"type":"tick","t\n[]\n{"type":"gap"}\n{"ty')
    assert [t["type"] for t in run.ticks()] == ["hello", "gap"]
    assert (run.stdout_size, run.telemetry_size) == (14, 57)
    run.close()
    run.append_telemetry(b'{"type":"tick"}\n')  # another process: what a crash left of a line is cut
    assert [t["type"] for t in run.ticks()] == ["hello", "gap", "tick"]
    run.close()


def test_a_tick_without_end_is_not_read_whole(store: Store) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    data = b"[" * (10 << 20) + b'\n{"type":"gap"}\n'
    run.append_telemetry(data)
    assert [t["type"] for t in run.ticks()] == ["gap"]
    assert max(len(line) for _, line in raw_lines(run.path / layout.telemetry_of(0), 1 << 20)) <= 1 << 20
    run.close()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "."])
def test_an_artifact_stays_in_its_folder(name: str, store: Store) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    with pytest.raises(StoreError, match="does not stay in its folder"):
        run.artifact(name)
    path = run.artifact("ckpt/step 1/a.bin")
    assert path.parent.is_dir()
    assert path.is_relative_to(run.artifacts)


def test_an_artifact_does_not_leave_by_a_link(store: Store, tmp_path: Path) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    run.artifacts.mkdir()
    (run.artifacts / "out").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="by a link"):
        run.artifact("out/x")


# -- ids


def test_ids_resolve_by_prefix_and_last(store: Store) -> None:
    store.create(make_plan("20260130-080000-solo-1111", repeats=1), {})
    store.create(make_plan(), {})
    assert store.resolve(GROUP) == ("group", GROUP)
    assert store.resolve("20260131") == ("group", GROUP)
    assert store.resolve("last") == ("group", GROUP)
    assert store.resolve("last", "group") == ("group", GROUP)
    assert store.resolve("last.left.r1", "run") == ("run", f"{GROUP}.left.r1")
    assert store.resolve(f"{GROUP}.left.r2") == ("run", f"{GROUP}.left.r2")
    assert store.resolve("20260130-080000-solo-1111.l") == ("run", "20260130-080000-solo-1111.left.r1")


def test_a_group_stands_for_its_run_where_it_has_one(store: Store) -> None:
    plan = make_plan(repeats=1)
    store.create(plan, {})
    store.delete(f"{GROUP}.right.r1")
    assert store.resolve("last", "run") == ("run", f"{GROUP}.left.r1")
    assert store.resolve(GROUP, "run") == ("run", f"{GROUP}.left.r1")


def test_an_id_that_several_have_names_up_to_five(store: Store) -> None:
    store.create(make_plan(repeats=3), {})
    with pytest.raises(UsageError, match=r"stands for 6 runs: .*left\.r1, .*right\.r2 and 1 more\. Type more"):
        store.resolve("last", "run")
    store.create(make_plan("20260131-093000-duel-5555"), {})
    with pytest.raises(UsageError, match="stands for 2 groups"):
        store.resolve("20260131")


@pytest.mark.parametrize("want", ["any", "run", "group"])
def test_an_empty_word_stands_for_nothing_even_where_there_is_one_group(store: Store, want: Want) -> None:
    store.create(make_plan(repeats=1), {})
    with pytest.raises(UsageError, match="empty word"):
        store.resolve("", want)


def test_several_runs_where_either_will_do_are_named_in_the_plural(store: Store) -> None:
    store.create(make_plan(repeats=2), {})
    with pytest.raises(UsageError, match="stands for 2 runs or groups"):
        store.resolve("last.left")


def test_an_id_that_none_has_names_the_nearest(store: Store) -> None:
    with pytest.raises(UsageError, match="none yet"):
        store.resolve("x")
    with pytest.raises(UsageError, match=r"no group in .* yet"):
        store.resolve("last")
    store.create(make_plan(), {})
    with pytest.raises(UsageError, match=rf"Did you mean '{GROUP}'"):
        store.resolve("20260131-093000-deul-4f2a", "group")
    with pytest.raises(UsageError, match="there is no run"):
        store.run_dir("../x")
    with pytest.raises(UsageError, match="there is no group"):
        store.group("nobody")


# -- tags, sizes


def test_tags_come_and_go(store: Store) -> None:
    store.create(make_plan(), {})
    assert store.tag(GROUP, add=["night", "h200"]) == ("night", "h200")
    assert store.tag(f"{GROUP}.left.r1", add=["best"], remove=["night"]) == ("h200", "best")
    assert [r.id for r in store.runs("tag=best")] == [f"{GROUP}.left.r1"]
    assert len(store.runs("tag=night")) == 3
    with pytest.raises(UsageError, match="is no tag"):
        store.tag(GROUP, add=["two words"])


def test_size_counts_all_files_and_follows_no_link(store: Store, tmp_path: Path) -> None:
    store.create(make_plan(), {})
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    run = store.run_dir(f"{GROUP}.left.r1")
    before, group_before = store.size(run.id), store.size(GROUP)
    run.artifact("a/b").write_bytes(b"x" * 500)
    (run.path / "link").symlink_to(tmp_path / "big")
    assert 500 <= store.size(run.id) - before < 700
    assert store.size(GROUP) - group_before == store.size(run.id) - before


# -- folders that are not as they should be


def test_a_folder_that_cannot_be_written_is_one_sentence_and_still_lists(locked_folder: Path) -> None:
    store = Store(locked_folder)
    for attempt in (
        lambda: store.create(make_plan("20260201-000000-x-1"), {}),
        lambda: store.lock_group(GROUP),
        lambda: store.tag(GROUP, add=["x"]),
        lambda: store.run_dir(f"{GROUP}.left.r1").append_stdout(b"x", 0),
        lambda: store.run_dir(f"{GROUP}.left.r1").journal(),
    ):
        with pytest.raises(
            StoreError, match=r"permission denied\. Make the folder writable, or name another"
        ) as error:
            attempt()
        assert "\n" not in str(error.value)
    assert len(store.runs()) == 4
    assert store.resolve("last") == ("group", GROUP)


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    store = Store(tmp_path / "runs")
    with pytest.raises(StoreError, match="a file stands where a folder is needed"):
        store.create(make_plan(), {})
    with pytest.raises(StoreError, match="a file stands where a folder is needed"):
        store.runs()


def test_a_missing_folder_is_an_empty_store(store: Store) -> None:
    assert (store.runs(), store.groups()) == ([], [])
    assert not store.root.exists()


def test_groups_that_cannot_be_read_are_told_and_the_others_stand(store: Store) -> None:
    store.create(make_plan(), {})
    (store.root / "groups" / "bad.json").write_text('{"schema": "ekvi.group/2"}')
    (store.root / "groups" / "worse.json").write_text('{"schema": "ekvi.group/1"}')
    assert [g.id for g in store.groups()] == [GROUP]
    assert [str(p).split(" ")[0].rsplit("/", 1)[-1] for p in store.problems] == ["bad.json", "worse.json:1:"]


# -- recorded folders


def test_a_recorded_folder_opens_read_only_and_stays_as_it_is(store: Store) -> None:
    store.create(make_plan(), {})
    with store.run_dir(f"{GROUP}.left.r1").journal():
        pass
    before = sorted((p.relative_to(store.root), p.stat().st_mtime_ns) for p in store.root.rglob("*"))
    with Store.open_readonly(store.root) as recorded:
        run = recorded.run_dir(recorded.resolve("last.left.r1", "run").id)
        assert len(recorded.runs()) == 4
        assert list(run.journal_events()) == []
        assert len(run.columns()["step"]) == 0
        for attempt in (run.journal, lambda: recorded.lock_group(GROUP), lambda: recorded.delete(GROUP)):
            with pytest.raises((StoreError, UsageError), match="opened for reading only"):
                attempt()
    assert sorted((p.relative_to(store.root), p.stat().st_mtime_ns) for p in store.root.rglob("*")) == before


@pytest.mark.parametrize("inside", ["", "demo/"])
def test_a_zip_of_a_runs_folder_opens_and_leaves_nothing(inside: str, store: Store, tmp_path: Path) -> None:
    store.create(make_plan(), {})
    with zipfile.ZipFile(tmp_path / "demo.zip", "w") as archive:
        for path in store.root.rglob("*"):
            archive.write(path, inside + str(path.relative_to(store.root)))
    with Store.open_readonly(tmp_path / "demo.zip") as recorded:
        assert recorded.resolve("last") == ("group", GROUP)
        assert len(recorded.group(GROUP).runs) == 4
        where = recorded.root
        assert where.is_dir()
    assert not where.exists()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("no zip")
    with pytest.raises(StoreError, match="is no zip file"):
        Store.open_readonly(tmp_path / "x.zip")
    with pytest.raises(StoreError, match="there is no runs folder"):
        Store.open_readonly(tmp_path / "none")


def test_a_tag_and_a_state_written_at_the_same_time_both_stay(store: Store) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    rounds = 30

    def states() -> None:
        for number in range(rounds):
            RunDir(run.path).update_meta(reason=str(number))

    writer = threading.Thread(target=states)
    writer.start()
    for number in range(rounds):
        store.tag(run.id, add=[f"t{number}"])
    writer.join(30)
    meta = run.meta()
    assert meta["reason"] == str(rounds - 1)
    assert len(meta["tags"]) == rounds


def test_what_a_killed_writer_left_is_swept(store: Store) -> None:
    store.create(make_plan(), {})
    run = store.run_dir(f"{GROUP}.left.r1")
    stray = run.path / ".run.json.0123abcd"
    stray.write_text("half")
    run.update_meta(reason="x")
    assert not stray.exists()
