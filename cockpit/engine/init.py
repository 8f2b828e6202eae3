"""A first profile: what `init` would write, and writing it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cockpit.config import find_profiles, find_servers, user_folder, validate_all
from cockpit.core.errors import ConfigError, did_you_mean

PLAIN = "tiny"  # a model that trains anywhere, within a minute
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# What a profile for a model says beside it; the sizes for 8 GPUs a server are those of the ready profile for it.
_PLAIN_WORDS: Mapping[str, Any] = {"data": "pydoc", "stall_after_s": 300}
_LARGE_WORDS: Mapping[str, Any] = {
    "data": "synthetic",
    "stall_after_s": 1800,
    "training": {
        "train_iters": 60,
        "sequence_length": 8192,
        "micro_batch": 1,
        "global_batch": 128,
        "parallel": {"data": 8},
    },
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall be written: server files by name, and a profile that names them (None: the servers alone)."""

    servers: Mapping[str, Mapping[str, Any]]
    profile: str | None = None
    model: str = PLAIN
    launcher: str = "container"
    image: str | None = None
    repeats: int | None = None

    def files(self) -> Iterator[tuple[Path, str]]:
        """Each file and its text, in the order in which they are written."""
        from cockpit.config.write import server_text

        folder = user_folder()
        for name, values in self.servers.items():
            yield folder / "server" / f"{name}.yaml", server_text(name, values)
        if self.profile is not None:
            yield folder / f"{self.profile}.yaml", self._profile()

    def _profile(self) -> str:
        import yaml

        more = _PLAIN_WORDS if self.model == PLAIN else _LARGE_WORDS
        choices = {"model": self.model, "data": more["data"], "training": "cpu", "runner": "megatron"}
        choices |= {"launcher": self.launcher, "theme": "nord", "pricing": "none"}
        defaults: list[Any] = [{k: v} for k, v in choices.items()]
        defaults += [{f"server@servers.{name}": name} for name in self.servers]
        body: dict[str, Any] = {"description": f"{self.model} on {' and '.join(self.servers)}"}
        if self.repeats is not None:
            body["repeats"] = self.repeats
        body |= {k: v for k, v in more.items() if k != "data"}
        longest = _longest(self.model)
        if "training" in body and longest is not None and longest < body["training"]["sequence_length"]:
            body["training"] = {**body["training"], "sequence_length": longest}
        if self.launcher == "container" and self.image:
            body["launcher"] = {"image": self.image}
        head = "# Written by `ekvi-cockpit init`. `training` is by the servers' vendors; cpu without GPUs.\n"
        return head + "".join(
            yaml.safe_dump(part, sort_keys=False, allow_unicode=True)
            for part in ({"defaults": [*defaults, "_self_"]}, body)
        )


def _longest(model: str) -> int | None:
    """Tokens of the longest sequence that a model's file names; None where it names none."""
    import yaml

    from cockpit.config.find import folders

    for folder in folders():
        path = folder / "model" / f"{model}.yaml"
        if path.is_file():
            try:
                said = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError):
                return None  # what is wrong with it is said where the profile is checked
            found = said.get("max_sequence") if isinstance(said, dict) else None
            return found if isinstance(found, int) else None
    return None


def models() -> list[str]:
    """The models that a profile can name, the plain one first."""
    from cockpit.config.find import folders

    names = {p.stem for folder in folders() for p in (folder / "model").glob("*.yaml")}
    return sorted(names, key=lambda n: (n != PLAIN, n))


def check(wanted: Wanted, *, force: bool) -> None:
    """Refuse names that cannot be, and files that are there already; raises ConfigError."""
    for name in [*wanted.servers, *([wanted.profile] if wanted.profile is not None else [])]:
        if not _NAME.fullmatch(name):
            hint = "Use letters, digits, _ and -, beginning with a letter or digit."
            raise ConfigError(f"{name!r} is no name for a file.", hint=hint)
    if wanted.model not in models():
        raise ConfigError(f"there is no model {wanted.model!r}.", hint=did_you_mean(wanted.model, models()))
    if wanted.repeats is not None and wanted.repeats < 1:
        raise ConfigError("repeats must be at least 1.")
    there = [str(path) for path, _ in wanted.files() if path.exists()]
    if there and not force:
        raise ConfigError(f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already.",
                          hint="Say --force to overwrite, or take other names.")  # fmt: skip


def write(wanted: Wanted, *, force: bool) -> list[Path]:
    """Write the files and return their paths; all of them are good, or what was new is taken away again.

    Raises ConfigError.
    """
    from cockpit.config.write import put

    check(wanted, force=force)
    files = list(wanted.files())
    new = [path for path, _ in files if not path.exists()]
    try:
        for path, text in files:
            put(path, text)
        problems = validate_all(wanted.profile) if wanted.profile is not None else []
        if problems:
            raise problems[0]
    except ConfigError:
        for path in new:
            path.unlink(missing_ok=True)
        raise
    return [path for path, _ in files]


def name_for(address: str, taken: Sequence[str] = ()) -> str:
    """A server's name from its address: root@gpu-7.example.org is gpu-7."""
    host = address.rpartition("@")[2]
    bare = host if re.fullmatch(r"[\d.:\[\]]+", host) else host.split(".", 1)[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", bare).strip("-_") or "server"
    number = next((n for n in range(2, len(taken) + 2) if f"{name}-{n}" not in taken), 2)
    return f"{name}-{number}" if name in taken else name


def taken_profiles() -> set[str]:
    """Names of profiles that are the user's own."""
    return {p.name for p in find_profiles() if p.user}


def taken_servers() -> set[str]:
    """Names of server files that are the user's own."""
    return {s.name for s in find_servers() if s.user}
