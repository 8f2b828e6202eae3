"""A dry run asks the servers what a launch would ask them, and says where it could not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cockpit.core.records import Access, GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.engine.dryrun import dry_run
from cockpit.hosts import connect

ENGINE = """#!/bin/sh
case "$1" in
info) echo '{"ServerVersion": "27.0"}' ;;
image) echo '[{"Id": "sha256:abc", "Config": {"Entrypoint": ["/the/entry"]}}]' ;;
esac
"""


def _group(access: Access, runner: str = "command", **more: str) -> GroupPlan:
    run = RunPlan(
        run="g.s.r1", group="g", server="s", repeat=0, sweep={}, launcher="container", launch={"image": "an/image:1"},
        stages=(StagePlan(stage="train", argv=("true",)),), config={"runner": {"name": runner}},
    )  # fmt: skip
    queue = QueuePlan(
        key="s",
        address=access.address,
        workdir=None,
        slot="default",
        slots=1,
        cooldown_s=0,
        runs=(run,),
        access=access,
    )
    server = ServerSpec(name="s", address=access.address, access=access)
    return GroupPlan(group="g", profile="p", overrides=(), servers={"s": server}, queues=(queue,), **more)  # type: ignore[arg-type]


async def test_engine_image_and_home_are_the_server_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text(ENGINE)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/of someone")
    script = await dry_run(_group(Access()), connect)
    assert "source=/home/of someone/.cache/huggingface,target=/data" in script
    assert '"/the/entry"' in script
    assert "as usual" not in script


async def test_a_server_that_does_not_answer_is_said_to_be_guessed_at() -> None:
    script = await dry_run(_group(Access(address="nobody.invalid", config="/dev/null")), connect)
    assert "# s could not be asked, and is taken to be as usual: " in script
    assert "docker create" in script
