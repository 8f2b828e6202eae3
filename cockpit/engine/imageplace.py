"""Where an image is needed: the server, its engine, and who hears of the progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cockpit.core.errors import LaunchRefused
from cockpit.core.imagename import image_tag
from cockpit.core.records import ServerSpec
from cockpit.engine.imagecommand import Say, command, refusal
from cockpit.engine.registry import login_for
from cockpit.hosts.base import Completed, Host


@dataclass(frozen=True, slots=True)
class Place:
    """A server that is to have the image of the launcher settings `launch`; lines of progress go to `say`.

    `local` is this machine, whose user's logins are sent along where the settings say so. `profile` is for hints.
    """

    host: Host
    server: ServerSpec
    launch: Mapping[str, Any]
    say: Say
    local: Host
    profile: str = "P"

    @property
    def image(self) -> str:
        """The image's name."""
        return image_tag(self.launch, self.server.vendor)

    async def engine(self) -> str:
        """docker or podman: as the settings say, as the server was found, or asked now. Raises LaunchRefused."""
        known = self.server.container
        return known.engine if known and self._said == "auto" else await self.engine_of(self.host)

    async def engine_of(self, host: Host) -> str:
        """The engine of another machine with these settings. Raises LaunchRefused."""
        if self._said != "auto":
            return self._said
        from cockpit.hosts.probe import container_facts

        return (await container_facts(host, self._said, self.image, vendor=self.server.vendor)).engine

    @property
    def _said(self) -> str:
        return str(self.launch.get("engine", "auto"))

    async def login(self, image: str) -> bytes | None:
        """This user's login for the image's registry, where the profile sends it along."""
        if self.launch.get("registry_login") != "mine":
            return None
        login = await login_for(image, self.local)
        if login is None:
            self.say(f"no login here for the registry of {image}: trying without one")
        return login

    async def run(self, argv: Sequence[str], *, timeout: float, login: bytes | None = None, **more: Any) -> Completed:
        """`command` there; the login is kept below the server's work folder meanwhile."""
        return await command(
            self.host, argv, say=self.say, timeout=timeout, workdir=self.server.workdir, login=login, **more
        )

    def refusal(self, engine: str, image: str, done: Completed, *, doing: str, login: bytes | None) -> LaunchRefused:
        """The sentence for a command that failed there."""
        return refusal(self.server.name, engine, image, done, doing=doing, login=login is not None)
