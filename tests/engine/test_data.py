"""Prepared data copied from one machine to the others of a group, over real folders."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.errors import ConfigError, LaunchRefused
from cockpit.core.records import GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.engine.admit import Checked
from cockpit.engine.data import ENTRY, share_data
from cockpit.engine.dryrun import dry_run
from cockpit.hosts import connect
from runners.schema import RunConfig

KEY = "0123456789abcdef"
FILES = {"tokens.bin": b"\0\1\2" * 1000, "tokens.idx": b"idx", "tokenizer.json": b"{}"}
FILES |= {"shards/train-00000.tar": b"tar", "shards/.nv-meta/index.uuid": b"1"}


def _checked(tmp_path: Path, **changes: Any) -> Checked:
    config = RunConfig().model_dump(mode="json")
    servers, queues = {}, []
    for name in ("a", "b"):
        servers[name] = ServerSpec(name=name, workdir=str(tmp_path / name))
        stages = tuple(StagePlan(stage=s, env={"X": "1"}) for s in ("data", "train", "wrap"))
        run = RunPlan(
            run=f"g.{name}.r1", group="g", server=name, repeat=0, sweep={}, launcher="process", stages=stages,
            config=config,
        )  # fmt: skip
        queues.append(
            QueuePlan(key=name, address="local", workdir=str(tmp_path / name), slot="default", slots=1, cooldown_s=0,
                      runs=(run,))
        )  # fmt: skip
    group = GroupPlan(
        group="g", profile="p", overrides=(), servers=servers, queues=tuple(queues), data_from="a", **changes
    )
    return Checked(group)


def _prepare(work: Path, **changed: bytes) -> Path:
    folder = work / "cache" / "data"
    entry = folder / KEY
    entry.mkdir(parents=True)
    (folder / f"{RunConfig().data.request}.entry").write_text(KEY)
    for name, data in FILES.items():
        (entry / name).parent.mkdir(parents=True, exist_ok=True)
        (entry / name).write_bytes(data)
    files = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FILES.items()}
    (entry / "manifest.json").write_text(json.dumps({"files": files}))
    for name, data in changed.items():
        (entry / name.replace("_", ".")).write_bytes(data)
    return entry


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b", "manifest.json", ".hidden", "a//b", ""])
async def test_a_manifest_that_leads_out_of_its_entry_is_refused(tmp_path: Path, name: str) -> None:
    entry = _prepare(tmp_path / "a")
    (entry / "manifest.json").write_text(json.dumps({"files": {name: {"bytes": 1, "sha256": "0"}}}))
    with pytest.raises(LaunchRefused, match="is damaged: its manifest names"):
        await share_data(_checked(tmp_path), connect)


async def test_the_others_get_the_same_bytes_and_every_run_is_told(tmp_path: Path) -> None:
    source = _prepare(tmp_path / "a")
    shared = await share_data(_checked(tmp_path), connect)
    target = tmp_path / "b" / "cache" / "data" / KEY
    assert _contents(target) == _contents(source)
    assert not shared.refused
    for run in shared.group.runs:
        assert [s.env.get(ENTRY) for s in run.stages] == [KEY, KEY, None]
        assert run.stages[0].env["X"] == "1"


async def test_what_is_there_whole_is_not_sent_again_and_what_is_damaged_is(tmp_path: Path) -> None:
    _prepare(tmp_path / "a")
    await share_data(_checked(tmp_path), connect)
    target = tmp_path / "b" / "cache" / "data" / KEY / "tokens.bin"
    before = target.stat().st_ino
    await share_data(_checked(tmp_path), connect)
    assert target.stat().st_ino == before
    target.write_bytes(b"short")
    await share_data(_checked(tmp_path), connect)
    assert target.read_bytes() == FILES["tokens.bin"]


async def test_a_dry_run_copies_the_same_bytes_by_hand(tmp_path: Path) -> None:
    source = _prepare(tmp_path / "a")
    script = await dry_run(_checked(tmp_path).group, connect)
    copies = [line for line in script.splitlines() if "/cache/data" in line and " | " in line]
    assert len(copies) == 2, script
    assert script.count(f'"{ENTRY}": "{KEY}"') == 4  # data and train of two runs
    target = tmp_path / "b" / "cache" / "data" / KEY
    copy = "\n".join(["set -eu", f"WORK={shlex.quote(str(tmp_path / 'b'))}", *copies])
    subprocess.run(["sh", "-c", copy], check=True, timeout=30)
    assert _contents(target) == _contents(source)
    (target / "tokens.bin").write_bytes(b"another")
    compare = subprocess.run(["sh", "-c", copy.replace(copies[0], "")], capture_output=True, timeout=30, check=False)
    assert compare.returncode != 0


async def test_a_dry_run_says_why_it_does_not_copy(tmp_path: Path) -> None:
    script = await dry_run(_checked(tmp_path).group, connect)
    (remark,) = [line for line in script.splitlines() if "data_from" in line]
    assert remark.startswith("# data_from: `run` first copies what a has prepared to b; this does not")
    assert "a has not prepared the data of this profile. First `ekvi-cockpit run" in remark


async def test_a_source_without_the_data_says_what_to_run_first(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused, match="a has not prepared") as error:
        await share_data(_checked(tmp_path), connect)
    assert error.value.hint is not None
    assert "run --profile p --stage data --servers a" in error.value.hint


async def test_the_source_alone_prepares_its_data_as_the_hint_says(tmp_path: Path) -> None:
    checked = _checked(tmp_path)
    group = checked.group
    alone = dataclasses.replace(group, queues=group.queues[:1], servers={"a": group.servers["a"]})
    shared = await share_data(dataclasses.replace(checked, group=alone), connect)
    assert [s.env.get(ENTRY) for s in shared.group.runs[0].stages] == [None, None, None]


async def test_a_damaged_source_is_named(tmp_path: Path) -> None:
    _prepare(tmp_path / "a", tokens_bin=b"\0\1\3" * 1000)
    with pytest.raises(LaunchRefused, match=r"damaged: tokens\.bin"):
        await share_data(_checked(tmp_path), connect)


async def test_a_source_that_is_no_server_is_refused(tmp_path: Path) -> None:
    checked = _checked(tmp_path)
    group = dataclasses.replace(checked.group, data_from="c")
    with pytest.raises(ConfigError, match="no server 'c'"):
        await share_data(dataclasses.replace(checked, group=group), connect)


async def test_mock_data_is_nowhere_and_not_asked_for(tmp_path: Path) -> None:
    checked = _checked(tmp_path)
    mock = RunConfig.model_validate({"data": {"source": "mock"}}).model_dump(mode="json")
    queues = tuple(
        dataclasses.replace(q, runs=tuple(dataclasses.replace(r, config=mock) for r in q.runs))
        for q in checked.group.queues
    )
    group = dataclasses.replace(checked.group, queues=queues)
    assert (await share_data(dataclasses.replace(checked, group=group), connect)).group == group
