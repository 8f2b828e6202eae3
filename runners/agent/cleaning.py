"""What lies in a work folder, and how a queue's folder goes: with what a container left in it as another user."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from typing import Any, Dict, List, Optional, Tuple

from . import container, engine, queuefile, record, tidy
from .base import AgentError, is_locked
from .files import read_whole_lines
from .queuefile import Queue, RunSpec, Stage

_KEPT = re.compile(r"queue\.json|launch\.json|agent\.lock|container\.\d+\.json")


def has_shim(run_dir: str) -> bool:
    """Whether a shim of this run lives."""
    try:
        names = os.listdir(run_dir)
    except OSError:
        return False
    return any(
        name.startswith("shim.") and name.endswith(".json") and is_locked(os.path.join(run_dir, name))
        for name in names
    )


def clean(queue: Queue) -> None:
    """Remove the queue's folder. AgentError where something runs, or where files stay that are not ours to remove."""
    busy = [spec.run for spec in queue.runs if has_shim(queue.run_dir(spec.run)) or _has_container(queue, spec)]
    if busy:
        raise AgentError("%s still runs %s. Stop it first." % (queue.path, ", ".join(busy)))
    notes = [note for spec in queue.runs for note in _give(queue, spec)]
    failed = _remove(queue.path)
    if failed:
        path, why = failed[0]
        why = "; ".join(notes) or why
        raise AgentError(
            "%s is not gone: %d files stay, the first is %s (%s)." % (queue.path, len(failed), path, why)
        )


def _remove(path: str) -> List[Tuple[str, str]]:
    """What stays and why. What is needed to try again goes only after all else has gone."""
    failed: List[Tuple[str, str]] = []

    def note(error: OSError) -> None:
        failed.append((str(error.filename), error.strerror or str(error)))

    for folder, folders, names in os.walk(path, onerror=note):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in links]  # a link that is gone is a folder to walk
        for name in [*names, *links]:
            if not _KEPT.fullmatch(name):
                try:
                    os.unlink(os.path.join(folder, name))
                except OSError as error:
                    note(error)
    if not failed:
        shutil.rmtree(path, onerror=lambda _, name, info: failed.append((name, str(info[1]))))
    return failed


def _has_container(queue: Queue, spec: RunSpec) -> bool:
    """Whether a container of the run lives that no shim watches. AgentError where its engine does not say."""
    stage = _unfinished(queue, spec)
    if stage is None:
        return False
    try:
        asked = engine.of_stage(queue, spec, stage, dict(os.environ))
        return bool(asked.ids(engine.labels(queue, spec), running=True))
    except engine.EngineAway as away:
        raise AgentError("%s may still run %s: %s." % (queue.path, spec.run, away)) from away


def _unfinished(queue: Queue, spec: RunSpec) -> Optional[Stage]:
    """The stage whose container was made and not seen to its end, if there is one."""
    for i, stage in enumerate(spec.stages):
        fields = record.read(os.path.join(queue.run_dir(spec.run), "container.%d.json" % i))
        if fields is not None and not container.has_ended(fields):
            return stage
    return None


def _give(queue: Queue, spec: RunSpec) -> List[str]:
    """Have the run's folder given to us by a container of its own image; what did not work."""
    stage = next((stage for stage in spec.stages if stage.container is not None), None)
    image = tidy.image_of(queue, spec)
    if stage is None or image is None:
        return []
    asked = engine.of_stage(queue, spec, stage, dict(os.environ))
    return tidy.give_folder(asked, queue.run_dir(spec.run), image, engine.labels(queue, spec))


def queues(work: str) -> List[Dict[str, Any]]:
    """Every queue below a work folder, oldest first; one that cannot be read has `path` and `error` alone."""
    found = []
    groups = os.path.join(work, "groups")
    for name in os.listdir(groups) if os.path.isdir(groups) else []:
        path = os.path.join(groups, name)
        if os.path.isdir(path):
            found.append(_about(path))
    return sorted(found, key=lambda about: -(about.get("age_s") or 0.0))


def _about(path: str) -> Dict[str, Any]:
    try:
        queue = queuefile.load(path)
        age_s = max(0.0, time.time() - os.stat(queue.file("queue.json")).st_mtime)
    except (AgentError, OSError) as error:
        return {"path": path, "error": str(error)}
    runs = []
    for spec in queue.runs:
        lines = read_whole_lines(os.path.join(queue.run_dir(spec.run), "states.jsonl"), tail_by=64 << 10)
        last = lines[-1] if lines else {}
        runs.append({"run": spec.run, "state": last.get("state"), "stage": last.get("stage")})
    alive = is_locked(queue.file("agent.lock"))
    return {
        "path": queue.path,
        "group": queue.group,
        "key": queue.key,
        "alive": alive,
        "pid": _pid(queue) if alive else None,
        "running": [spec.run for spec in queue.runs if has_shim(queue.run_dir(spec.run))],
        "age_s": age_s,
        "size_by": _size_by(queue.path),
        "runs": runs,
    }


def _pid(queue: Queue) -> Optional[int]:
    try:
        with open(queue.file("agent.json"), "rb") as f:
            pid = json.loads(f.read()).get("pid")
    except (OSError, ValueError, AttributeError):
        return None
    return pid if isinstance(pid, int) else None


def _size_by(path: str) -> int:
    """Bytes on the disk, as far as we may look."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
