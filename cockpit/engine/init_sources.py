"""Where a first profile can come from: Host entries of SSH's configuration, and KEY=VALUE files of older scripts."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cockpit.core.errors import ConfigError, did_you_mean

_DEEPEST = 16  # Includes in Includes, as ssh itself allows
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")
_KEY = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_WILD = re.compile(r"[*?!]")
SIDES = {"CUDA": "nvidia", "ROCM": "amd"}
_FOLDERS = ("PATH", "DIR", "ROOT", "WORKDIR", "SERVER_PATH", "SERVER_DIR", "PROJECT_PATH", "PROJECT_DIR")
TOKENS = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def ssh_hosts(config: Path | None = None) -> list[str]:
    """The names that Host lines of an SSH configuration define, in order; patterns are left out.

    None is ~/.ssh/config, which need not exist. Raises ConfigError where a file cannot be read.
    """
    path = config if config is not None else Path.home() / ".ssh" / "config"
    return list(dict.fromkeys(_hosts(path, Path.home() / ".ssh", 0, must=config is not None)))


def _hosts(path: Path, base: Path, depth: int, *, must: bool) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        if must:
            raise ConfigError(f"there is no SSH configuration {path}.") from None
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    for line in text.splitlines():
        found = _LINE.match(line)
        key = found[1].lower() if found else ""
        if found is None or key not in ("host", "include"):
            continue
        words = _words(found[2])
        if key == "host":
            yield from (w for w in words if not _WILD.search(w))
        elif depth < _DEEPEST:
            for word in words:
                place = Path(word).expanduser()
                for name in sorted(glob.glob(str(place if place.is_absolute() else base / place))):  # noqa: PTH207
                    yield from _hosts(Path(name), base, depth + 1, must=False)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an unbalanced quote: ssh refuses the line, we pass over it
        return []


@dataclass(frozen=True, slots=True)
class FromEnv:
    """What env files say: server values by name, the token's name where one stands there, and keys not understood."""

    servers: Mapping[str, dict[str, Any]]
    token: str | None = None
    unused: tuple[str, ...] = field(default=())


def read_env(path: Path) -> dict[str, str]:
    """The variables of a file of KEY=VALUE lines, as a shell would read simple ones. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeError:
        raise ConfigError(f"{path} is not text in UTF-8.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _KEY.fullmatch(bare)
        if match is None:
            raise ConfigError("this is no KEY=VALUE.", hint="Comments begin with #.", file=path, line=number)
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError:
            raise ConfigError(
                f"the value of {match[1]} has a quote that does not end.", file=path, line=number
            ) from None
        found[match[1]] = " ".join(words)
    return found


def from_env(paths: Sequence[Path]) -> FromEnv:
    """Two servers out of CUDA_SERVER, ROCM_SERVER and what stands beside them. A token's value is dropped here.

    A folder of a side (CUDA_PATH, ROCM_DIR...) becomes the parent of the agent's folder there; PORT and KEY (or
    SSH_PORT, SSH_KEY for both) are SSH's. Raises ConfigError.
    """
    said: dict[str, str] = {}
    for path in paths:
        said |= read_env(path)
    used: set[str] = set(TOKENS)
    servers: dict[str, dict[str, Any]] = {}
    for side, vendor in SIDES.items():
        address = said.get(f"{side}_SERVER", "")
        used.add(f"{side}_SERVER")
        if address:
            servers[side.lower()] = {"address": address, "vendor": vendor, **_beside(side, said, used)}
    if not servers:
        named = " and ".join(str(p) for p in paths)
        near = did_you_mean("CUDA_SERVER", said) if said else None
        raise ConfigError(f"{named} set neither CUDA_SERVER nor ROCM_SERVER.", hint=near or "CUDA_SERVER=USER@HOST")
    token = next((name for name in TOKENS if name in said), None)
    if token is not None:
        for values in servers.values():
            values["secrets"] = ["HF_TOKEN"]
    return FromEnv(servers, token, tuple(sorted(set(said) - used)))


def _beside(side: str, said: Mapping[str, str], used: set[str]) -> dict[str, Any]:
    """The values that stand beside a side's address: its folder, its port, its key."""

    def first(*names: str) -> str:
        used.update(n for n in names if n in said)
        return next((said[n] for n in names if said.get(n)), "")

    values: dict[str, Any] = {}
    folder = first(*(f"{side}_{end}" for end in _FOLDERS), "SERVER_PATH", "REMOTE_PATH", "REMOTE_DIR")
    if folder.startswith(("/", "~/")):
        values["workdir"] = folder.rstrip("/") + "/.ekvi-cockpit"
    ssh: dict[str, Any] = {}
    port = first(f"{side}_PORT", f"{side}_SSH_PORT", "SSH_PORT")
    if port.isascii() and port.isdigit():
        ssh["port"] = int(port)
    if identity := first(f"{side}_KEY", f"{side}_SSH_KEY", "SSH_KEY"):
        ssh["identity"] = identity
    return values | ({"ssh": ssh} if ssh else {})
