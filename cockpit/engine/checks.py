"""Could a run start on a server? The questions that `run` asks before it starts anything, and `doctor` with more."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cockpit.core.records import ContainerFacts, RunPlan, ServerSpec
from cockpit.engine import (
    checks_container,
    checks_gpus,
    checks_leftovers,
    checks_machine,
    checks_memory,
    checks_nodes,
)
from cockpit.engine.deliver import HF_TOKENS, secret
from cockpit.engine.findings import Examined, Finding, fail, ok, step

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.hosts.look import Container, Look

__all__ = ["Examined", "Finding", "examine"]

AGENT_PYTHON = (3, 8)
LOGIN_S = 60.0  # a jump host, and a login that asks
_NEEDS = {
    "megatron": ("torch", "megatron.core", "tokenizers", "pydantic"),
    "lora": ("torch", "transformers", "peft", "pydantic"),
    "smoke": ("torch", "pydantic"),
    "command": (),
}


async def examine(
    host: Host,
    server: ServerSpec,
    runs: Sequence[RunPlan],
    *,
    peers: Sequence[Host] = (),
    full: bool = False,
    profile: str = "P",
) -> Examined:
    """What stands in the way of `runs` on `server`, which `host` leads to; `peers` are its other nodes.

    Without `full` only what could keep a run from starting is asked. No runs: only what concerns every run. The
    container's facts are the first node's. `profile` is for hints. Never raises a CockpitError: an error
    is a finding.
    """
    hosts = [host, *peers]
    looked = await asyncio.gather(*(_Machine(h, server, runs, full, profile).examine() for h in hosts))
    findings = list(looked[0].findings)
    for peer, found in zip(peers, looked[1:], strict=True):
        findings += [replace(f, text=f"node {peer.name}: {f.text}") for f in found.findings]
    findings += _secrets(server)
    if peers and all(found.reached for found in looked):
        workdirs = [found.workdir for found in looked if found.workdir is not None]
        if len(workdirs) == len(hosts):
            findings += await step("workdir", checks_nodes.apart(host, peers, server, workdirs))
        look = checks_nodes.ports(host, peers, server, looked[0].workdir or "", _agent_python(server))
        findings += await step("ports", look, timeout=90.0)
    return Examined(findings, looked[0].container)


@dataclass(slots=True)
class _Machine:
    """The examination of one machine: what it found so far, in the order in which it is shown."""

    host: Host
    server: ServerSpec
    runs: Sequence[RunPlan]
    full: bool
    profile: str
    findings: list[Finding] = field(default_factory=list)
    container: ContainerFacts | None = None
    workdir: str | None = None
    reached: bool = False

    async def examine(self) -> _Machine:
        """Log in first; where that works, look at the machine, then at what its parts need, side by side."""
        self.findings += await step("login", self._login(), timeout=LOGIN_S)
        if any(f.level == "fail" for f in self.findings):
            return self
        self.reached = True
        looks: list[Awaitable[list[Finding]]] = [
            step("python", self._python()),
            step("workdir", self._machine(), timeout=120.0),
        ]
        if self.full:
            looks += [step("clock", self._clock(), level="warn"), step("agents", self._leftovers(), level="warn")]
        for found in await asyncio.gather(*looks):
            self.findings += found
        return self

    async def _login(self) -> Iterable[Finding]:
        done = await self.host.run(["sh", "-c", "id -un"], timeout=30.0)
        if done.rc != 0:
            text = f"the login works, but sh does not: {done.last_words or f'status {done.rc}'}."
            return [fail("login", text, "The login needs a shell that runs commands.")]
        user = done.stdout.decode(errors="replace").strip()
        return [ok("login", f"{user} on {self.host.name}")]

    async def _machine(self) -> Iterable[Finding]:
        """Room and rights, then engine, image and GPUs, which need what the first look saw."""
        from cockpit.hosts import look as looking

        self.workdir = await self.host.workdir(self.server.workdir)
        launches = [r for r in self.runs if r.launcher == "container"]
        paths = tuple(self.server.mounts) if launches else ()
        devices = checks_machine.named_devices(launches)
        look = await looking.around(self.host, self.workdir, (*paths, *devices))
        there = dict(zip((*paths, *devices), look.there, strict=True))
        found = [
            *checks_machine.room(look, self.workdir, self.host),
            *checks_machine.mounts(there, paths, self.host),
            *checks_machine.devices(there, devices, self.host),
        ]
        if self.full:
            found += [*checks_machine.memory(look), *checks_machine.load(look)]
        if launches or self.full:
            found += await step("logins", checks_container.logins(self.host, self.workdir), level="warn")
        if launches:
            found += await step("engine", self._engine(launches), timeout=100.0)
        elif self.full and not self.runs:
            found += await step("engine", self._any_engine(), level="warn")
        if self.server.vendor != "cpu":
            found += await step("gpus", self._gpus(look, container=bool(launches)), timeout=100.0)
        return found

    async def _engine(self, runs: Sequence[RunPlan]) -> Iterable[Finding]:
        """The container engine, and each image that the runs name."""
        from cockpit.core.imagename import image_tag
        from cockpit.hosts import probe

        found: list[Finding] = []
        named = {image_tag(r.launch, self.server.vendor): r.launch for r in runs}
        for name, settings in named.items():
            facts = await probe.container_facts(
                self.host, str(settings.get("engine", "auto")), name, vendor=self.server.vendor
            )
            if self.container is None:
                self.container = facts
                found.append(checks_container.engine(facts))
            python = _agent_python(self.server)
            look = checks_container.image(
                self.host, name, settings, facts, python, full=self.full, profile=self.profile
            )
            found += await step("image", look)
        return found

    async def _any_engine(self) -> Iterable[Finding]:
        """Which engine would serve, where nobody said that one is needed."""
        from cockpit.hosts import probe

        self.container = await probe.container_facts(self.host, "auto", "scratch", vendor=self.server.vendor)
        return [checks_container.engine(self.container)]

    async def _gpus(self, look: Look, *, container: bool) -> Iterable[Finding]:
        """Devices, indices, and who is there."""
        from cockpit.hosts import look as looking

        vendor = self.server.vendor
        found = list(checks_gpus.devices(look, vendor, container=container))
        if any(f.level == "fail" for f in found):
            return found
        there = await self._containers()
        count, seen = None, None
        if self.full or self.server.gpus or checks_memory.estimate(self.runs) is not None:
            seen = await looking.gpus(self.host, vendor)
            count = seen.count
            if self.full or self.server.gpus:
                found += checks_gpus.inventory(seen, look, self.server)
        found += checks_memory.fit(self.runs, seen, self.server)
        found += await step("tenants", checks_gpus.tenants(self.host, self.server, there, count), level="warn")
        if self.full and self.container is not None:
            found += checks_gpus.running(list(there.values()))
        return found

    async def _containers(self) -> dict[str, Container]:
        """The machine's containers by id; none where no engine serves."""
        from cockpit.hosts import look as looking

        if self.container is None:
            return {}
        return {c.id: c for c in await looking.containers(self.host, self.container.engine)}

    async def _python(self) -> Iterable[Finding]:
        """The agent's Python; without containers it also trains, so it has the runner's packages too."""
        from cockpit.hosts import probe

        python = _agent_python(self.server)
        plain = [run for run in self.runs if run.launcher == "process"]
        if not plain:
            await probe.check_python(self.host, python, (), minimum=AGENT_PYTHON)
            return [ok("python", f"{python}, {'.'.join(map(str, AGENT_PYTHON))} or newer")]
        for runner in dict.fromkeys(str(run.config["runner"]["name"]) for run in plain):
            modules = _NEEDS[runner]
            missing = await probe.check_python(
                self.host, python, modules, minimum=(3, 10) if modules else AGENT_PYTHON
            )
            if missing:
                return [_missing(runner, python, missing)]
        return [ok("python", f"{python} has what the runner needs")]

    async def _clock(self) -> Iterable[Finding]:
        from cockpit.hosts import look as looking

        return checks_machine.clock(await looking.clock(self.host))

    async def _leftovers(self) -> Iterable[Finding]:
        workdir = await self.host.workdir(self.server.workdir)
        return await checks_leftovers.leftovers(self.host, workdir, _agent_python(self.server))


def _agent_python(server: ServerSpec) -> str:
    from cockpit.launch import interpreter

    return interpreter(server)


def _secrets(server: ServerSpec) -> Iterator[Finding]:
    """Whether each secret has a value here. The value itself is looked at by nobody."""
    for name in server.secrets:
        if secret(name) is not None:
            yield ok("secrets", f"{name} is set here, and travels as a file")
        else:
            login = (
                ", or `hf auth login`" if name in HF_TOKENS else f", or leave it out of servers.{server.name}.secrets"
            )
            yield fail("secrets", f"{name} has no value here.", f"Set it before you start: export {name}=...{login}.")


def _missing(runner: str, python: str, missing: Sequence[str]) -> Finding:
    """Why a server cannot train, and what to do about it."""
    if tuple(missing) == ("megatron.core",) and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return fail(
            "python",
            f"megatron-core is not installed, and it has no wheel for {platform.system()} on {platform.machine()}.",
            "What works here: `replay demo`, `show` and `compare` of runs made elsewhere, and servers over SSH.",
        )
    return fail(
        "python",
        f"the {runner} runner needs {', '.join(missing)}, which {python} does not have.",
        "Install the train extra there: pip install 'ekvi-cockpit[train]' "
        "(on a machine without a GPU install a CPU build of torch first).",
    )
