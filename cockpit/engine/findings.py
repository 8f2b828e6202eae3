"""What a look at a server finds, and how one look that fails is kept from hiding the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cockpit.core.errors import CockpitError, LaunchRefused
from cockpit.core.records import ContainerFacts

Level = Literal["ok", "warn", "fail"]
STEP_S = 40.0  # most that one step may take; what it asks of the host has shorter limits of its own


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of an examination. `fail` means that a run could not start; `mend` says what to do about it.

    `text` is a sentence without the server's name, which stands above it.
    """

    check: str
    level: Level
    text: str
    mend: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in ekvi.doctor/1."""
        return {"check": self.check, "level": self.level, "text": self.text, "mend": self.mend}


@dataclass(frozen=True, slots=True)
class Examined:
    """All that was found on a server. `container` is what rendering a container needs, None where it is not known."""

    findings: list[Finding]
    container: ContainerFacts | None = None

    @property
    def fit(self) -> bool:
        """Whether a run could start."""
        return all(f.level != "fail" for f in self.findings)

    def refusal(self, server: str, profile: str) -> LaunchRefused | None:
        """Why nothing of `profile` can start on `server`, the first failure first; None where it can."""
        failed = [f for f in self.findings if f.level == "fail"]
        if not failed:
            return None
        more = f" ({len(failed) - 1} more: see `ekvi-cockpit doctor --profile {profile}`.)" if len(failed) > 1 else ""
        return LaunchRefused(
            f"server {server}: {failed[0].text}", hint=f"{failed[0].mend or ''}{more}".strip() or None
        )


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", text)


def warn(check: str, text: str, mend: str | None = None) -> Finding:
    """A run can start, but somebody should know."""
    return Finding(check, "warn", text, mend)


def fail(check: str, text: str, mend: str | None = None) -> Finding:
    """A run cannot start."""
    return Finding(check, "fail", text, mend)


async def step(
    check: str,
    look: Awaitable[Iterable[Finding]],
    *,
    timeout: float = STEP_S,
    level: Level = "fail",
) -> list[Finding]:
    """What `look` finds; an error of it is a finding of `level`, so that it hides no other look."""
    try:
        async with asyncio.timeout(timeout):
            return list(await look)
    except CockpitError as error:
        return [Finding(check, level, error.message, error.hint)]
    except TimeoutError:
        return [
            Finding(check, level, f"no answer within {timeout:.0f} s.", "Try again when the server has less to do.")
        ]
