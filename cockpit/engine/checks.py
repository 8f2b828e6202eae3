"""Could a run start on a server? The questions that `run` asks before it starts anything, and `doctor` with more."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cockpit.core.records import RunPlan, ServerSpec
from cockpit.engine.findings import Examined, Finding, fail, ok, step

if TYPE_CHECKING:
    from cockpit.hosts.base import Host

__all__ = ["Examined", "Finding", "examine"]

AGENT_PYTHON = (3, 8)
_NEEDS = {
    "megatron": ("torch", "megatron.core", "tokenizers", "pydantic"),
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
) -> Examined:
    """What stands in the way of `runs` on `server`, which `host` leads to; `peers` are its other nodes.

    Without `full` only what could keep a run from starting is asked. No runs: only what concerns every run. Never
    raises a CockpitError: an error is a finding.
    """
    found = await step("login", _login(host))
    if any(f.level == "fail" for f in found):
        return Examined(found)
    found += await step("python", _python(host, server, runs))
    return Examined(found)


async def _login(host: Host) -> Iterable[Finding]:
    started = time.monotonic()
    done = await host.run(["sh", "-c", "id -un"], timeout=30.0)
    if done.rc != 0:
        return [fail("login", f"the login works, but sh does not: {done.last_words or f'status {done.rc}'}.",
                     "A login shell that runs POSIX commands is needed there.")]  # fmt: skip
    user = done.stdout.decode(errors="replace").strip()
    return [ok("login", f"as {user}, {(time.monotonic() - started) * 1e3:.0f} ms")]


async def _python(host: Host, server: ServerSpec, runs: Sequence[RunPlan]) -> Iterable[Finding]:
    """The agent's Python; without containers it also trains, so it has the runner's packages too."""
    from cockpit.hosts import probe
    from cockpit.launch.process import interpreter

    python = interpreter(server)
    plain = [run for run in runs if run.launcher == "process"]
    if not plain:
        await probe.check_python(host, python, (), minimum=AGENT_PYTHON)
        return [ok("python", f"{python}, {'.'.join(map(str, AGENT_PYTHON))} or newer")]
    for runner in dict.fromkeys(str(run.config["runner"]["name"]) for run in plain):
        modules = _NEEDS[runner]
        minimum = (3, 10) if modules else AGENT_PYTHON
        missing = await probe.check_python(host, python, modules, minimum=minimum)
        if missing:
            return [_missing(runner, python, missing)]
    return [ok("python", f"{python} has what the runner needs")]


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
