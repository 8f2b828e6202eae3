"""GPUs: the vendor's driver and devices, the indices that a profile names, and who is on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from cockpit.core.records import ServerSpec
from cockpit.engine.findings import Finding, Level, fail, ok, warn

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.hosts.look import Container, Gpus, Look, Whose
    from cockpit.hosts.probe import Tenant


def devices(look: Look, vendor: str, *, container: bool) -> Iterator[Finding]:
    """Whether the devices are there that the vendor's driver makes."""
    if vendor == "nvidia" and not look.nvidia:
        yield fail(
            "devices",
            "no NVIDIA driver is loaded: /dev/nvidiactl is not there.",
            "Load the driver until nvidia-smi works there, or set the server's vendor to what it has.",
        )
    if vendor == "amd":
        missing = [
            name for name, there in (("/dev/kfd", look.kfd), ("/dev/dri/renderD*", look.renders > 0)) if not there
        ]
        if missing:
            yield fail(
                "devices",
                f"no AMD driver is loaded: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there.",
                "Load amdgpu (modprobe amdgpu; ROCm's driver), or set the server's vendor to what it has.",
            )
        elif not look.kfd_open and not container:
            yield fail(
                "devices",
                f"{look.user or 'the user'} may not open /dev/kfd.",
                f"Add the user to its groups (sudo usermod -aG render,video {look.user or 'USER'}) and log in anew.",
            )


def inventory(found: Gpus, look: Look, server: ServerSpec) -> Iterator[Finding]:
    """Which GPUs there are, and whether those are among them that `gpus` names."""
    count = found.count if found.count is not None or server.vendor != "amd" else look.renders or None
    wanted = server.gpus or ()
    absent = [i for i in wanted if count is not None and i >= count]
    if found.problem is not None:
        level: Level = "warn" if "is not there" in found.problem else "fail"
        yield Finding("gpus", level, f"{found.problem}.", "See the driver there: nvidia-smi must list its GPUs.")
    elif absent:
        one = len(absent) == 1
        yield fail(
            "gpus",
            f"GPU{'' if one else 's'} {', '.join(map(str, absent))} {'is' if one else 'are'} not there: the server "
            f"has {count} (0{f'-{count - 1}' if count and count > 1 else ''}).",
            f"Correct servers.{server.name}.gpus.",
        )
    elif count is None:
        yield warn("gpus", "how many GPUs there are is not known: the driver does not say.")
    else:
        models = ", ".join(dict.fromkeys(found.models)) or "model unknown"
        driver = f", driver {found.driver}" if found.driver else ""
        chosen = f"; used: {','.join(map(str, wanted))}" if wanted else ""
        yield ok("gpus", f"{count} x {models}{driver}{chosen}")


async def tenants(
    host: Host, server: ServerSpec, there: Mapping[str, Container], count: int | None = None
) -> Iterable[Finding]:
    """Who is on the GPUs that a run would use.

    `there` are the machine's containers by their id, `count` is how many GPUs it has, None where nobody asked.
    """
    from cockpit.hosts import probe
    from cockpit.hosts.look import whose

    found = await probe.gpu_tenants(host, server.vendor, server.gpus)
    if not found:
        return [ok("tenants", "nobody is on the GPUs")]
    known = await whose(host, [t.pid for t in found])
    ours = {pid: run for pid, w in known.items() if (run := w.run or _run_in(w, there))}
    others = [t for t in found if t.pid not in ours]
    if not others:
        runs = ", ".join(sorted(set(ours.values())))
        return [
            warn("tenants", f"a run of this cockpit is on the GPUs: {runs}.", "A new one in its slot waits for it.")
        ]
    more = f"; and {len(others) - 4} more" if len(others) > 4 else ""
    text = "; ".join(_tenant(t, known.get(t.pid), there) for t in others[:4]) + more
    if server.share_gpus:
        return [warn("tenants", f"{text}.", "share_gpus starts beside them: what they use, the figures lack.")]
    return [
        fail(
            "tenants",
            f"somebody is on the GPUs: {text}.",
            f"Wait for them, {_others(server, found, count)}or start beside them "
            f"(servers.{server.name}.share_gpus=true).",
        )
    ]


def _others(server: ServerSpec, found: Collection[Tenant], count: int | None) -> str:
    """Which GPUs could be taken in place of the busy ones, where there are any; by number where that is known."""
    busy = {t.gpu for t in found}
    if count is None or None in busy:
        return f"take others (servers.{server.name}.gpus), "
    free = [str(i) for i in range(count) if i not in busy]
    return f"take others (servers.{server.name}.gpus={','.join(free)}), " if free else ""


def _run_in(whose: Whose, there: Mapping[str, Container]) -> str | None:
    """The run of ours in whose container a process is."""
    place = there.get(whose.container) if whose.container else None
    return place.run if place else None


def running(there: Collection[Container]) -> Iterator[Finding]:
    """Which containers run, those with GPUs first."""
    others = [c for c in there if c.run is None]
    on_gpus = [c for c in others if c.gpu]
    ours = sum(1 for c in there if c.run is not None)
    if on_gpus:
        names = ", ".join(f"{c.name} ({c.image})" for c in on_gpus[:4])
        yield warn("containers", f"with GPUs: {names}.", "Ask whose they are, if they train while you measure.")
    elif others or ours:
        names = f": {', '.join(c.name for c in others[:4])}" if others else ""
        yield ok("containers", f"{len(others)} of others{names}; {ours} of ours; none of others has GPUs")
    else:
        yield ok("containers", "none run")


def _tenant(tenant: Tenant, whose: Whose | None, there: Mapping[str, Container]) -> str:
    """One who is on a GPU: which, who, pid and memory, as far as they are known."""
    from cockpit.hosts.look import size

    who = f"{tenant.user}'s {tenant.name}" if tenant.user else tenant.name or "a program"
    memory = f", {size(tenant.memory_by)}" if tenant.memory_by is not None else ""
    place = there.get(whose.container) if whose and whose.container else None
    where = f" in container {place.name}" if place else " in a container" if whose and whose.container else ""
    gpu = f"GPU {tenant.gpu}: " if tenant.gpu is not None else ""
    return f"{gpu}{who} (pid {tenant.pid}{memory}){where}"
