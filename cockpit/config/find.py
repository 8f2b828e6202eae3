"""Where profiles and server files are, and what is known of them without composing anything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.core.errors import ConfigError, did_you_mean
from cockpit.core.resources import data_dir

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """A profile that can be named. `user` is whether it is the user's own; `problem` says why it cannot be read."""

    name: str
    path: Path
    description: str
    user: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server file. `address`, `vendor` and `nodes` as it says them; `problem` says why it cannot be read.

    `transport` is how it is reached: local, asyncssh or openssh.
    """

    name: str
    path: Path
    user: bool
    address: str = "local"
    vendor: str = "auto"
    problem: str | None = None
    nodes: tuple[str, ...] = ()
    transport: str = "local"


def user_folder() -> Path:
    """The user's profiles: `$XDG_CONFIG_HOME/ekvi-cockpit/profiles`, else the platform's place for configuration."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "ekvi-cockpit" / "profiles"
    from platformdirs import user_config_path

    return user_config_path("ekvi-cockpit", appauthor=False) / "profiles"


def folders() -> list[Path]:
    """The folders of profiles, the user's first where it exists. Raises ConfigError where that cannot be read."""
    own, out = user_folder(), [data_dir("profiles")]
    try:
        with os.scandir(own):
            out.insert(0, own)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(
            f"the profile folder {own} cannot be read: {error.strerror}.",
            hint="It must be a folder that you may read.",
        ) from None
    return out


def find_profiles(group: str = "") -> list[ProfileInfo]:
    """All profiles by name, or the choices of a `group`, the user's before shipped ones of the same name.

    Raises ConfigError.
    """
    found: dict[str, ProfileInfo] = {}
    for path, user in _files(group):
        data, problem = _peek(path)
        description = str(data.get("description") or (_remark(path) if group and not problem else ""))
        found.setdefault(path.stem, ProfileInfo(path.stem, path, description, user, problem))
    return sorted(found.values(), key=lambda info: info.name)


def find_servers() -> list[ServerInfo]:
    """All server files by name, the user's before shipped ones of the same name. Raises ConfigError."""
    found: dict[str, ServerInfo] = {}
    for path, user in _files("server"):
        data, problem = _peek(path)
        found.setdefault(path.stem, _server(path, data, user, problem))
    return sorted(found.values(), key=lambda info: info.name)


def _server(path: Path, data: dict[str, Any], user: bool, problem: str | None) -> ServerInfo:
    """What a server file says, as far as it can be told before it is validated."""
    said, ssh = data.get("nodes"), data.get("ssh")
    nodes = tuple(str(n) for n in said) if isinstance(said, list) else ()
    address = str(data.get("address") or (nodes[0] if nodes else "local"))
    over = str(ssh.get("transport") or "asyncssh") if isinstance(ssh, dict) else "asyncssh"
    transport = "local" if address == "local" else over
    return ServerInfo(path.stem, path, user, address, str(data.get("vendor") or "auto"), problem, nodes, transport)


def profile_path(name: str) -> Path:
    """The file of a profile. Raises ConfigError with the nearest names where there is none."""
    place = f"Put the file into {user_folder()} and give its name"
    if "/" in name or "\\" in name or name.startswith(("~", ".")):
        stem = re.split(r"[/\\]", name.removesuffix(".yaml"))[-1] or "NAME"
        raise ConfigError(f"{name!r} is a path; a profile goes by its name.", hint=f"{place}: --profile {stem}.")
    if name.endswith((".yaml", ".yml")):
        raise ConfigError(f"{name!r} is a file name.", hint=f"Give the profile's name: {name.rsplit('.', 1)[0]}.")
    for folder in folders():
        path = folder / f"{name}.yaml"
        if _NAME.fullmatch(name) and path.is_file():
            return path
        if _NAME.fullmatch(name) and path.with_suffix(".yml").is_file():
            raise ConfigError(f"{path.with_suffix('.yml')} is not looked at.", hint=f"Call it {name}.yaml.")
    raise ConfigError(f"there is no profile {name!r}.", hint=did_you_mean(name, (p.name for p in find_profiles())))


def _files(group: str) -> list[tuple[Path, bool]]:
    """The YAML files of a folder in all profile folders, and whether each is the user's."""
    out = []
    for folder in folders():
        try:
            names = sorted(e.name for e in os.scandir(folder / group) if e.name.endswith(".yaml"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"the folder {folder / group} cannot be read: {error.strerror}.") from None
        out += [(folder / group / name, folder == user_folder()) for name in names if not name.startswith(".")]
    return out


def _remark(path: Path) -> str:
    """What a file's first line remarks, without its last stop; empty where it remarks nothing."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""


def _peek(path: Path) -> tuple[dict[str, Any], str | None]:
    """The top level of a YAML file, and what is wrong with it; a broken file must not hide the others."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return {}, f"broken YAML, {line}{error.problem}"
    except (yaml.YAMLError, UnicodeError):
        return {}, "not YAML in UTF-8"
    except OSError as error:
        return {}, f"cannot be read: {error.strerror}"
    if data is None:
        return {}, None
    return (data, None) if isinstance(data, dict) else ({}, "a list or a text where keys should be")
