"""After a container, in a process of its own: remove what carries our labels, give its files to our user."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Dict, Iterator, List, Optional, Sequence

from . import engine, record
from .engine import Engine, EngineAway
from .queuefile import Queue, RunSpec

GIVE_S = 60.0


def main(words: Optional[Sequence[str]] = None) -> int:
    """`tidy Q RUN INDEX`: prints {"notes": [what could not be done]}."""
    called = engine.called(words)
    if called is None:
        return 1
    queue, spec, stage, _ = called
    asked = engine.of_stage(queue, spec, stage, dict(os.environ))
    notes = remove(asked, engine.labels(queue, spec))
    notes += give(asked, queue, spec)
    sys.stdout.write(json.dumps({"notes": notes}) + "\n")
    return 0


def remove(asked: Engine, labels: Dict[str, str]) -> List[str]:
    """Remove every container with these labels; what could not be removed, a sentence each."""
    try:
        left = []
        for name in asked.ids(labels):
            answer = asked.remove(name)
            if answer.rc != 0 and asked.look(name) is not None:
                left.append("container %s could not be removed: %s" % (name[:12], answer.why))
    except EngineAway as away:
        return ["whether a container of this run is left is not known: %s" % away]
    return left


def give(asked: Engine, queue: Queue, spec: RunSpec) -> List[str]:
    """Give the files in out/ that a container made as another user to ours; what stays another's, in one sentence."""
    own = engine.labels(queue, spec)
    return give_folder(asked, os.path.join(queue.run_dir(spec.run), "out"), image_of(queue, spec), own)


def give_folder(asked: Engine, folder: str, image: Optional[str], labels: Dict[str, str]) -> List[str]:
    """The same for a folder, by a container of `image` with our labels where we may not do it ourselves."""
    if os.geteuid() == 0:
        for path in _foreign(folder):
            with contextlib.suppress(OSError):
                os.lchown(path, 0, os.getegid())
    why = "no image is known that could do it"
    # In an engine without root's rights the container's root is our user.
    for owner in ("%d:%d" % (os.geteuid(), os.getegid()), "0:0"):
        if next(_foreign(folder), None) is None:
            return []
        if image is not None:
            why = _give_by_container(asked, folder, image, owner, labels)
    left = sum(1 for _ in _foreign(folder))
    if not left:
        return []
    return ["%d files in %s belong to another user and stay so: %s" % (left, folder, why)]


def image_of(queue: Queue, spec: RunSpec) -> Optional[str]:
    """The image of one of the run's containers, or None where none was made."""
    for i in range(len(spec.stages)):
        fields = record.read(os.path.join(queue.run_dir(spec.run), "container.%d.json" % i))
        if fields is not None and fields.get("image_id"):
            return str(fields["image_id"])
    return None


def _give_by_container(asked: Engine, folder: str, image: str, owner: str, labels: Dict[str, str]) -> str:
    """Why that did not work, if it did not."""
    source = folder.replace('"', '""')
    marks = [word for key, value in labels.items() for word in ("--label", "%s=%s" % (key, value))]
    try:
        answer = asked.call(
            *("run", "--rm", "--network", "none", "--user", "0:0", "--security-opt", "label=disable", *marks),
            *("--mount", 'type=bind,"source=%s",target=/ekvi/out' % source, "--entrypoint", "chown"),
            *(image, "-R", "-h", owner, "/ekvi/out"),
            timeout=GIVE_S,
        )
    except EngineAway as away:
        return str(away)
    return answer.why if answer.rc != 0 else "chown in a container of the image did not help"


def _foreign(folder: str) -> Iterator[str]:
    """What in a folder is not ours, the folder itself included."""
    me = os.geteuid()
    for inner, folders, names in os.walk(folder):
        for path in [inner, *(os.path.join(inner, name) for name in [*folders, *names])]:
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid != me:
                    yield path
