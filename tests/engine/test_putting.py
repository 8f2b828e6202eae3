"""A launch that breaks off leaves nothing of its own on a server, and everything of others."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from cockpit.core.errors import ConfigError, LaunchRefused, ServerError
from cockpit.core.records import ServerSpec
from cockpit.engine.deliver import Packing
from cockpit.engine.putting import _Launch, _Queue
from cockpit.hosts import LocalHost, layout
from cockpit.hosts.remote import command_line

OURS: dict[str, Any] = {"schema": "ekvi.queue/1", "group": "g", "key": "k"}


async def _queue(tmp_path: Path) -> tuple[_Queue, list[Path]]:
    hosts = [LocalHost(), LocalHost()]
    paths, nodes = [], []
    for i, host in enumerate(hosts):
        work = await host.workdir(str(tmp_path / f"work{i}"))
        paths.append(Path(layout.queue_folder(work, "g", "k")))
        nodes.append({"path": str(paths[-1])})
        (paths[-1] / "secrets").mkdir(parents=True)
        (paths[-1] / "secrets" / "TOKEN").write_text("planted")
    queue = _Queue(cast("Any", None), cast("Any", hosts), handle={"nodes": nodes}, documents=[OURS, OURS])
    return queue, paths


async def _refuse(queue: _Queue, *more: Any) -> None:
    async def refused() -> None:
        raise LaunchRefused("not here.")

    with pytest.raises(LaunchRefused):
        await _Launch.__new__(_Launch)._all_nodes(queue, [refused(), *more])


async def test_a_node_that_refuses_ends_what_is_put_on_the_others(tmp_path: Path) -> None:
    queue, paths = await _queue(tmp_path)
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await asyncio.wait_for(_refuse(queue, slow()), 20)
    assert ended.is_set(), "it would have put secrets there afterwards"
    assert not any(path.exists() for path in paths)


async def test_another_queue_in_that_place_is_left_alone(tmp_path: Path) -> None:
    queue, paths = await _queue(tmp_path)
    (paths[0] / "queue.json").write_text(layout.document({**OURS, "group": "another"}))
    (paths[1] / "queue.json").write_text(layout.document(OURS))
    await asyncio.wait_for(_refuse(queue), 20)
    assert (paths[0] / "secrets" / "TOKEN").exists()
    assert not paths[1].exists()


def test_a_local_file_whose_name_no_archive_can_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "\udcff.sh").touch()
    with closing(Packing()) as packing, pytest.raises(ConfigError, match=r"name is no UTF-8: '.*\\udcff\.sh'"):
        packing.pack(ServerSpec(name="left", files={str(tmp_path / "scripts"): "/x"}))


def test_half_a_character_is_no_word_of_a_command() -> None:
    with pytest.raises(ServerError, match=r"'\\ud800' is half a character"):
        command_line(["echo", "\ud800"])
