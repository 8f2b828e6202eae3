"""What stands in the way of a profile, or of server files, asked of all servers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import CockpitError, UsageError
from cockpit.core.records import Access, RunPlan, ServerSpec
from cockpit.engine.admit import Connect, accesses, close
from cockpit.engine.checks import examine
from cockpit.engine.findings import Examined, Finding, fail

if TYPE_CHECKING:
    from cockpit.engine.start import Wish
    from cockpit.hosts.base import Host

_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Told:
    """What was found on one server. `vendor` None: nobody could say."""

    name: str
    address: str
    nodes: tuple[str, ...]
    vendor: str | None
    findings: tuple[Finding, ...]

    @property
    def level(self) -> str:
        """The worst of its findings."""
        return max((f.level for f in self.findings), key=("ok", "warn", "fail").index, default="ok")

    def to_json(self) -> dict[str, Any]:
        """As it stands in ekvi.doctor/1."""
        return {
            "name": self.name,
            "address": self.address,
            "nodes": list(self.nodes),
            "vendor": self.vendor,
            "level": self.level,
            "findings": [f.to_json() for f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All servers. `profile` None: server files were asked."""

    servers: tuple[Told, ...]
    profile: str | None = None

    @property
    def unfit(self) -> tuple[str, ...]:
        """The servers on which a run could not start."""
        return tuple(s.name for s in self.servers if s.level == "fail")

    @property
    def verdict(self) -> str:
        """One sentence about all of it."""
        warned = sum(f.level == "warn" for s in self.servers for f in s.findings)
        notes = f"; {warned} warning{'s' if warned != 1 else ''}" if warned else ""
        if not self.unfit:
            every = "this server" if len(self.servers) == 1 else f"all {len(self.servers)} servers"
            return f"A run can start on {every}{notes}."
        fit = [s.name for s in self.servers if s.level != "fail"]
        rest = f"; it can on {', '.join(fit)}" if fit else ""
        return f"A run could not start on {', '.join(self.unfit)}{rest}{notes}."

    def to_json(self) -> dict[str, Any]:
        """The document ekvi.doctor/1."""
        return {
            "schema": "ekvi.doctor/1",
            "profile": self.profile,
            "fit": not self.unfit,
            "verdict": self.verdict,
            "servers": [s.to_json() for s in self.servers],
        }


async def doctor(wish: Wish, connect: Connect) -> Diagnosis:
    """Examine every server of a profile for the runs that it would get; raises ConfigError, never a ServerError."""
    from cockpit.config import load
    from cockpit.plan import make_plan

    def loaded(detect: dict[str, str] | None) -> Any:
        return load(wish.profile, wish.overrides, servers=wish.servers, multirun=wish.multirun, detect=detect)

    found = await asyncio.to_thread(loaded, None)
    auto = {n: s.ssh.access(s.address, s.python) for n, s in found.base.servers.items() if s.vendor == "auto"}
    vendors = await _detect({name: connect(access) for name, access in auto.items()})
    # A server that does not say its vendor is examined as the one that its training is for.
    found = await asyncio.to_thread(loaded, {n: v for n, v in vendors.items() if v is not None})
    plan = make_plan(found, group="doctor", repeats=1, stage=wish.stage)
    runs = {name: [r for r in plan.runs if r.server == name] for name in plan.servers}
    told = await asyncio.gather(*(_tell(s, runs[name], connect, wish.profile) for name, s in plan.servers.items()))
    lost = {name for name, vendor in vendors.items() if vendor is None}
    return Diagnosis(tuple(replace(t, vendor=None) if t.name in lost else t for t in told), wish.profile)


async def test_servers(names: Sequence[str], connect: Connect) -> Diagnosis:
    """Examine server files by name, all of them where none is named. Raises ConfigError."""
    from cockpit.config import find_servers, server_spec

    names = list(dict.fromkeys(names)) or [s.name for s in find_servers() if s.problem is None]
    if not names:
        raise UsageError(
            "there are no server files.", hint="`ekvi-cockpit servers add NAME address=HOST` writes one."
        )
    specs = [await asyncio.to_thread(server_spec, name) for name in names]
    hosts = {spec.name: connect(spec.access) for spec in specs if spec.vendor == "auto"}
    vendors = await _detect(hosts)
    known = [replace(s, vendor=vendors.get(s.name) or "cpu") if s.vendor == "auto" else s for s in specs]
    told = await asyncio.gather(*(_tell(spec, [], connect) for spec in known))
    return Diagnosis(tuple(replace(t, vendor=vendors.get(t.name, t.vendor)) for t in told))


async def _detect(hosts: dict[str, Host]) -> dict[str, str | None]:
    """The vendors of machines, asked all at once; None where nobody answers, which the examination then says."""
    from cockpit.hosts.probe import detect_vendor

    async def ask(host: Host) -> str | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await detect_vendor(host)
        except (CockpitError, TimeoutError):
            return None
        finally:
            await close([host])

    return dict(zip(hosts, await asyncio.gather(*(ask(h) for h in hosts.values())), strict=True))


async def _tell(server: ServerSpec, runs: Sequence[RunPlan], connect: Connect, profile: str = "P") -> Told:
    hosts: list[Host] = []
    try:
        hosts += [connect(access) for access in accesses(server)]
        examined = await examine(hosts[0], server, runs, peers=hosts[1:], full=True, profile=profile)
    except CockpitError as error:  # a server that this version has no way to
        examined = Examined([fail("login", error.message, error.hint)])
    finally:
        await close(hosts)
    return Told(server.name, server.address, server.nodes, server.vendor, tuple(examined.findings))


async def vendor_of(address: str) -> tuple[str | None, Finding | None]:
    """The vendor of the machine at `address`, or why it cannot be reached; for a face that asks on the way."""
    from cockpit.hosts import connect
    from cockpit.hosts.probe import detect_vendor

    hosts: list[Host] = []
    try:
        hosts.append(connect(Access(address=address)))
        async with asyncio.timeout(_TIMEOUT_S):
            return await detect_vendor(hosts[0]), None
    except CockpitError as error:
        return None, fail("login", error.message, error.hint)
    except TimeoutError:
        return None, fail("login", f"{address} did not answer within {_TIMEOUT_S:.0f} s.")
    finally:
        await close(hosts)
