"""Profiles: find, compose, validate, write back. Importing this package loads neither hydra nor pydantic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.config.find import ProfileInfo, ServerInfo, find_profiles, find_servers, profile_path, user_folder
from cockpit.core.errors import ConfigError

if TYPE_CHECKING:
    from cockpit.config.models import Profile
    from cockpit.core.records import ServerSpec

__all__ = [
    "Point",
    "ProfileInfo",
    "Resolved",
    "ServerInfo",
    "find_profiles",
    "find_servers",
    "load",
    "profile_path",
    "server_spec",
    "show",
    "user_folder",
    "validate_all",
    "write_server",
]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep, or all there is without one.

    `sweep` maps the swept keys to their values as text. `configs` has a profile for each server, in the order of
    their turns, with that server alone in it, its vendor and training decided.
    """

    sweep: Mapping[str, str]
    configs: Mapping[str, Profile]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A profile with the user's words applied.

    `base` speaks for the group (description, repeats, stage, theme) and has the selected servers as they were
    written, so that a vendor may still be "auto" there.
    """

    name: str
    base: Profile
    points: tuple[Point, ...]
    overrides: tuple[str, ...] = ()


def load(
    profile: str,
    overrides: Sequence[str] = (),
    *,
    servers: Sequence[str] | None = None,
    multirun: bool = False,
    detect: Mapping[str, str] | None = None,
) -> Resolved:
    """Compose and validate a profile by name.

    `overrides` are words of Hydra's grammar, some maybe with a `SERVER:` before them. `servers` selects the profile's
    servers by name, and takes the server file of that name where the profile has none. `detect` maps servers to the
    vendor that was found there. Raises ConfigError.
    """
    from cockpit.config.resolve import load as _load

    return _load(profile, overrides, servers=servers, multirun=multirun, detect=detect or {})


def show(profile: str, overrides: Sequence[str] = (), *, servers: Sequence[str] | None = None) -> dict[str, Any]:
    """The composed document of each server as plain data. Raises ConfigError."""
    found = load(profile, overrides, servers=servers)
    return {name: config.model_dump(mode="json") for name, config in found.points[0].configs.items()}


def validate_all(profile: str, overrides: Sequence[str] = ()) -> list[ConfigError]:
    """Every problem of a profile, empty where it is good. Raises ConfigError where there is no such profile."""
    from cockpit.config.resolve import problems

    return problems(profile, overrides)


def server_spec(name: str) -> ServerSpec:
    """The server of a server file, as it says it: its vendor may be "auto". Raises ConfigError."""
    from cockpit.config.server import server_spec as _spec

    return _spec(name)


def write_server(name: str, values: Mapping[str, Any] | Sequence[str], *, overwrite: bool = False) -> Path:
    """Write a server file into the user's folder and return its path.

    `values` are keys of a server, or words that set them (`address=local env.NCCL_DEBUG=WARN`). Raises ConfigError,
    and writes nothing then.
    """
    from cockpit.config.write import write_server as _write

    return _write(name, values, overwrite=overwrite)
