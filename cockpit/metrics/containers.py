"""What a comparison knows of the containers that runs were in: their image, their engine, what they were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.metrics.sides import RunFacts, Side

# Settings of the launcher that reach the container. Where its image comes from, and how, changes nothing in there.
_GIVEN = (
    *("network", "ipc", "shm", "memory", "ulimits", "infiniband", "privileged", "init", "read_only", "extra"),
    *("nvidia", "devices", "group_add", "cap_add", "security_opt", "user", "workdir", "entrypoint"),
)
_ID_SHOWN = 12


def container_facts(run: RunFacts) -> dict[str, Any]:
    """What one run's container was given, by `container.KEY`; empty where it was in none."""
    plan = run.meta.get("plan") or {}
    if plan.get("launcher") != "container":
        return {}
    settings = plan.get("launch") or {}
    known = run.provenance.get("container") or {}
    out = {f"container.{k}": settings.get(k) for k in _GIVEN if k in settings}
    return {**out, "container.engine": known.get("engine"), "container.version": known.get("version")}


def image_difference(sides: Sequence[Side]) -> dict[str, Any] | None:
    """That the sides were not in the same image, or that nobody knows; None where they were, or one was in none.

    Images of two vendors cannot be one. The same image has another local id under another engine, and one that was
    sent from machine to machine has no digest: so either of the two says that it is the same.
    """
    seen = {s.name: [r.provenance.get("container") or {} for r in s.counted] for s in sides if s.counted}
    if not seen or not all(any(each) for each in seen.values()):
        return None
    runs = [one for each in seen.values() for one in each]
    if _same(runs, "image_id") or _same(runs, "digest"):
        return None
    values = {name: " | ".join(dict.fromkeys(_shown(one) for one in each)) for name, each in seen.items()}
    severity, why = "warning", "another image"
    mixed = [name for name, each in seen.items() if not (_same(each, "image_id") or _same(each, "digest"))]
    vendors = {r.meta.get("vendor") for s in sides for r in s.counted}
    if not all(one.get("image_id") or one.get("digest") for one in runs):
        why = "the image is not recorded for all: it cannot be said whether it was the same"
    elif mixed:
        why = f"the runs of {', '.join(mixed)} differ among themselves; another image"
    elif len(vendors) > 1:
        severity, why = "info", "the image of its device family"
    elif _same(runs, "image") and all(_built(r) for s in sides for r in s.counted):
        severity, why = "info", "built of the same recipe on each machine; packages are compared by themselves"
    return {"key": "image", "values": values, "severity": severity, "why": why}


def _same(runs: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Whether all of these know `key`, and it is one."""
    found = {run.get(key) for run in runs}
    return len(found) == 1 and None not in found


def _built(run: RunFacts) -> bool:
    """Whether a run's image is the one that `build` makes: its name is the hash of its recipe."""
    return ((run.meta.get("plan") or {}).get("launch") or {"image": ""}).get("image") is None


def _shown(known: Mapping[str, Any]) -> str:
    """`docker.io/org/train:1 (3f2c9a1b0d4e)`."""
    name = str(known.get("image") or "an image")
    ident = str(known.get("digest") or known.get("image_id") or "").removeprefix("sha256:")
    return f"{name} ({ident[:_ID_SHOWN]})" if ident else name
