"""The machine itself: room and rights, what is mounted into containers, memory, load, clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cockpit.core.records import RunPlan, ServerSpec
from cockpit.engine.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.hosts.look import Clock, Look

LEAST_BY = 64 << 20  # agent, code, states and the first lines of output
GOOD_BY = 5 << 30  # outputs of a few runs, each bounded at 1 GiB
_OFFSET_S = 2.0  # telemetry and iterations carry the server's clock, and people compare it with theirs
_BUSY = 0.5  # of a core


def room(look: Look, workdir: str, host: Host) -> Iterator[Finding]:
    """Whether the agent's folder can be made and filled."""
    from cockpit.hosts.look import size

    mend = "Set the server's workdir to a folder with more room, or free some there."
    if look.refused is not None and look.left_by != 0:
        yield fail(
            "workdir",
            f"{look.user or 'the user'} cannot write in {look.at}: {_reason(look.refused)}.",
            f"Give the right to it, or set the server's workdir to another folder (it would be {workdir}).",
        )
    elif look.left_by is None:
        yield warn("workdir", f"how much room there is in {look.at} is not known.")
    elif look.left_by < LEAST_BY:
        yield fail("workdir", f"only {size(look.left_by)} are left for {workdir} on {host.name}.", mend)
    elif look.left_by < GOOD_BY:
        yield warn("workdir", f"{size(look.left_by)} are left for {workdir}, which long outputs can fill.", mend)
    else:
        yield ok("workdir", f"{workdir}, {size(look.left_by)} left")


def _reason(said: str) -> str:
    """The last part of what mktemp or a shell says: `Permission denied`."""
    return said.rstrip(".").rpartition(": ")[2] or said


def named_devices(runs: Sequence[RunPlan]) -> tuple[str, ...]:
    """The paths on the machine that `launcher.devices` of these runs name; a CDI name is no path."""
    words = [str(word).split(":", 1)[0] for run in runs for word in run.launch.get("devices") or ()]
    return tuple(dict.fromkeys(word for word in words if word.startswith("/")))


def devices(there: Mapping[str, bool], named: Sequence[str], host: Host) -> Iterator[Finding]:
    """Whether the devices are there that a container is to be given besides its vendor's."""
    for path in named:
        if not there[path]:
            yield fail(
                "devices",
                f"the device {path} is not there on {host.name}.",
                "Load its driver there, or correct launcher.devices.",
            )


def mounts(there: Mapping[str, bool], paths: Sequence[str], host: Host) -> Iterator[Finding]:
    """Whether the sources of `mounts` are there, which an engine refuses or, worse, makes as empty folders."""
    missing = [path for path in paths if not there[path]]
    for path in missing:
        yield fail(
            "mounts",
            f"{path}, which is to be mounted, is not there on {host.name}.",
            "Make it there, or correct the server's mounts.",
        )
    if paths and not missing:
        yield ok("mounts", f"{', '.join(paths)} {'is' if len(paths) == 1 else 'are'} there")


def memory(look: Look) -> Iterator[Finding]:
    """Memory, and the shared memory that data loaders and collectives use."""
    from cockpit.hosts.look import size

    if look.memory_by is not None:
        free = f", {size(look.free_by)} free" if look.free_by is not None else ""
        yield ok("memory", f"{size(look.memory_by)}{free}; shared memory {size(look.shm_by)}")
    if look.shm_by is not None and look.shm_by < 1 << 30:
        yield warn(
            "memory",
            f"the shared memory holds only {size(look.shm_by)}, which data loaders and NCCL or RCCL fill.",
            "Enlarge it: mount -o remount,size=16G /dev/shm.",
        )


def load(look: Look) -> Iterator[Finding]:
    """Who else computes there: it shows in every figure of a comparison."""
    others = [b for b in look.busy if b.user != look.user and b.share >= _BUSY]
    if look.load is None and not others:
        return
    said = f"load {look.load:.2f}" if look.load is not None else "load unknown"
    said += f" on {look.cores} cores" if look.cores else ""
    if others:
        names = "; ".join(f"{b.user}'s {b.name} takes {b.share:.1f} cores" for b in others[:3])
        yield warn("load", f"{said}: {names}.", "What somebody else computes slows a run; wait, or ask them.")
    elif look.load is not None and look.cores and look.load > look.cores / 2:
        yield warn(
            "load", f"{said}: the machine is busy.", "See `top` there; a busy machine gives figures of its own."
        )
    else:
        yield ok("load", said)


def clock(found: Clock | None) -> Iterator[Finding]:
    """How far the server's clock is off, with the error of that."""
    if found is None:
        yield warn("clock", "the server's date does not give fractions of a second, so its offset is not known.")
        return
    said = f"{found.offset_s * 1e3:+.0f} ms ± {found.error_s * 1e3:.0f} ms from here"
    if abs(found.offset_s) - found.error_s > _OFFSET_S:
        yield warn("clock", f"{said}.", "Let NTP set the clock there (timedatectl set-ntp true), or the one here.")
    else:
        yield ok("clock", said)
    yield ok("latency", f"{found.trip_s * 1e3:.0f} ms for a command and back")


def mounted(server: ServerSpec) -> tuple[str, ...]:
    """The paths on the server that its `mounts` name."""
    return tuple(server.mounts)
