"""A store with a group in it, and disks that are full or read-only."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cockpit.core.records import GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.store.store import Store


def make_plan(group: str = "20260131-093000-duel-4f2a", repeats: int = 2) -> GroupPlan:
    """A group of two servers that share a queue."""
    servers = {name: ServerSpec(name=name, env={"OMP_NUM_THREADS": "1"}, gpus=(0, 1)) for name in ("left", "right")}
    stage = StagePlan(stage="train", module_args=("stage=train",), env={"A": "b"}, timeout_s=60.0)
    runs = tuple(
        RunPlan(
            run=f"{group}.{server}.r{repeat + 1}",
            group=group,
            server=server,
            repeat=repeat,
            sweep={"training.learning_rate": "1e-4"},
            launcher="process",
            stages=(stage,),
            config={"training": {"train_iters": 3}},
        )
        for repeat in range(repeats)
        for server in servers
    )
    queue = QueuePlan(key="q1", address="local", workdir=None, slot="default", slots=1, cooldown_s=0.5, runs=runs)
    return GroupPlan(group=group, profile="duel", overrides=("a=1",), servers=servers, queues=(queue,))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store, whose folder is not there yet."""
    return Store(tmp_path / "runs")


@contextlib.contextmanager
def _size_limit(limit_by: int) -> Iterator[None]:
    """No file may grow past `limit_by`: the kernel writes what fits and refuses the rest, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_by, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def full_at() -> Callable[[int], AbstractContextManager[None]]:
    """A context in which files are full at so many bytes."""
    return _size_limit


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder that this process may read and not write; root puts its rights down for it."""
    folder = Path(tempfile.mkdtemp())
    Store(folder).create(make_plan(), {})
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        path.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
            path.chmod(0o755)
        shutil.rmtree(folder)
