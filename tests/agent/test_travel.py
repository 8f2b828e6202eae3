"""What travels with a queue and what goes with it: files, links, secrets, and the list of a work folder."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from runners.agent import unpack
from tests.agent.support import Desk, python, stage


def _archive(desk: Desk, members: dict[str, tuple[bytes, int]]) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as z:
        for name, (data, mode) in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            z.writestr(info, data)
    sha16 = hashlib.sha256(packed.getvalue()).hexdigest()[:16]
    (desk.work / "files").mkdir(parents=True, exist_ok=True)
    (desk.work / "files" / f"{sha16}.zip").write_bytes(packed.getvalue())
    return sha16


def _with_links(desk: Desk, links: dict[str, str]) -> None:
    body = json.loads((desk.q / "queue.json").read_text())
    body["runs"][0]["links"] = links
    (desk.q / "queue.json").write_text(json.dumps(body))


def test_files_are_where_the_stage_looks_for_them(desk: Desk) -> None:
    sha16 = _archive(desk, {"a.yaml": (b"x: 1\n", 0o100644), "tools/go.sh": (b"#!/bin/sh\necho went\n", 0o100755)})
    read = "import subprocess\nprint(open('configs/a.yaml').read(), end='')\nsubprocess.run(['./go.sh'], check=True)"
    desk.queue({"a": [python("train", read)]}, files=[sha16])
    _with_links(
        desk, {"configs/a.yaml": f"${{FILES_DIR}}/{sha16}/a.yaml", "go.sh": f"${{FILES_DIR}}/{sha16}/tools/go.sh"}
    )
    desk.work_to_end()
    assert desk.last("a")["state"] == "SUCCEEDED", (desk.last("a"), desk.spool("a"))
    assert b"x: 1" in desk.spool("a")
    assert b"went" in desk.spool("a")
    folder = desk.work / "files" / sha16
    assert oct((folder / "a.yaml").stat().st_mode & 0o777) == "0o444"
    assert oct((folder / "tools" / "go.sh").stat().st_mode & 0o777) == "0o555"


def test_a_link_replaces_nothing(desk: Desk) -> None:
    desk.queue({"a": [stage("train", "true")]})
    _with_links(desk, {"data": "/tmp"})
    desk.run_dir("a").mkdir(parents=True)
    (desk.run_dir("a") / "data").write_text("somebody's")
    desk.work_to_end()
    assert "data is there already, so it cannot be a link to /tmp" in desk.last("a")["reason"]
    assert (desk.run_dir("a") / "data").read_text() == "somebody's"


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_no_member_leaves_its_folder(desk: Desk, name: str) -> None:
    sha16 = _archive(desk, {name: (b"x", 0o100644)})
    desk.queue({"a": [stage("train", "true")]}, files=[sha16])
    desk.work_to_end()
    assert "which lies outside of it" in desk.last("a")["reason"]
    assert not (desk.work / "files" / sha16).exists()


def test_an_archive_that_cannot_fit_is_not_begun(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    sha16 = _archive(desk, {"zeros": (b"\0" * (1 << 20), 0o100644)})
    monkeypatch.setattr(unpack, "free_by", lambda _: 1 << 19)
    with pytest.raises(OSError, match="No space left"):
        unpack.unpack(str(desk.work), sha16, "files")
    assert not (desk.work / "files" / f"{sha16}.tmp").exists()


def test_secrets_are_there_for_the_stage_and_gone_after_the_queue(desk: Desk) -> None:
    read = "import os; print(open(os.environ['KEY_FILE']).read() == 'plan' + 'ted')"
    desk.queue({run: [python("train", read, env={"KEY_FILE": "${SECRETS_DIR}/KEY"})] for run in ("a", "b")})
    (desk.q / "secrets").mkdir(mode=0o700)
    (desk.q / "secrets" / "KEY").write_text("planted")
    desk.work_to_end()
    assert desk.spool("a") == desk.spool("b") == b"True\n"
    assert not (desk.q / "secrets").exists()
    for path in desk.work.rglob("*"):
        assert path.is_dir() or b"planted" not in path.read_bytes(), path


def test_secrets_are_gone_when_everything_was_stopped(desk: Desk) -> None:
    desk.queue({"a": [python("train", "import time; print('up')\nwhile True: time.sleep(0.01)")]})
    (desk.q / "secrets").mkdir()
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    assert (desk.q / "secrets").exists()
    desk.call("stop", str(desk.q))
    desk.finish(agent)
    assert not (desk.q / "secrets").exists()


def test_list_shows_every_queue(desk: Desk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    desk.queue({"a": [python("train", wait, str(gate))]})
    broken = desk.work / "groups" / "g0.k1"
    broken.mkdir()
    (broken / "queue.json").write_text("{")
    agent = desk.work_here()
    desk.wait_state("a", "RUNNING")
    found = {Path(q["path"]).name: q for q in json.loads(desk.call("list", str(desk.work)).stdout)["queues"]}
    about = found["g1.k1"]
    assert (about["group"], about["key"], about["alive"], about["pid"]) == ("g1", "k1", True, agent.pid)
    assert about["running"] == ["a"]
    assert about["runs"] == [{"run": "a", "state": "RUNNING", "stage": "train"}]
    assert 0 <= about["age_s"] < 60
    assert about["size_by"] > 0
    assert "is not JSON" in found["g0.k1"]["error"]
    gate.touch()
    desk.finish(agent)
    about = json.loads(desk.call("list", str(desk.work)).stdout)["queues"]
    assert [q["alive"] for q in about if "group" in q] == [False]
    assert desk.call("list", str(desk.work / "none")).returncode == 1
    assert json.loads(desk.call("list", str(tmp_path)).stdout)["queues"] == []
