"""What goes to a server beside its queue: secrets, local files, prepared data. Values are never shown or noted."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cockpit.core.crash import conceal
from cockpit.core.errors import ConfigError, LaunchRefused
from cockpit.core.records import ServerSpec

HF_TOKENS = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A local file or folder, packed: the zip at `path`, its hash, and what is in it (`<sha16>/NAME` on a server)."""

    path: Path
    sha256: str
    name: str

    @property
    def there(self) -> str:
        """Where it is below a server's folder of files."""
        return f"{self.sha256[:16]}/{self.name}"


def secret(name: str) -> str | None:
    """A secret's value from this process's environment; a Hugging Face token also from the user's own file."""
    names = (name, *HF_TOKENS) if name in HF_TOKENS else (name,)
    value = next((found for known in names if (found := os.environ.get(known))), None)
    if value is None and name in HF_TOKENS:
        value = _hf_file()
    if value is not None:
        conceal(value)
    return value


def _hf_file() -> str | None:
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def secrets_of(servers: Iterable[ServerSpec]) -> dict[str, bytes]:
    """The values of all secrets that these servers name; raises LaunchRefused, which names what is missing."""
    found: dict[str, bytes] = {}
    for server in servers:
        for name in server.secrets:
            value = secret(name)
            if value is None:
                raise LaunchRefused(
                    f"server {server.name}: the secret {name} is not set here.",
                    hint=f"export {name}=..., "
                    + ("or `hf auth login`." if name in HF_TOKENS else "or leave it out of the server's secrets."),
                )
            found[name] = value.encode()
    return found


class Packing:
    """Local files of a group's servers as archives in a temporary folder, each packed once."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ekvi-files-", ignore_cleanup_errors=True)
        self._made: dict[str, Archive] = {}

    def close(self) -> None:
        """Remove the archives."""
        self._folder.cleanup()

    def pack(self, server: ServerSpec) -> dict[str, Archive]:
        """The archives of a server's `files`, by the local path as the profile says it. Raises ConfigError."""
        for local in server.files:
            if local not in self._made:
                source = Path(local).expanduser()
                if not source.exists():
                    raise ConfigError(
                        f"servers.{server.name}.files: {local} is not here.",
                        hint=f"Paths are seen from {Path.cwd()}, where this was called.",
                    )
                try:
                    self._made[local] = self._archive(source)
                except UnicodeEncodeError as e:
                    raise ConfigError(
                        f"servers.{server.name}.files: {local} has a file whose name is no UTF-8: {e.object!a}.",
                        hint="Rename it.",
                    ) from e
                except OSError as e:
                    raise ConfigError(
                        f"servers.{server.name}.files: {e.filename or local} cannot be read: {e.strerror or e}."
                    ) from e
        return {local: self._made[local] for local in server.files}

    def _archive(self, source: Path) -> Archive:
        target = Path(self._folder.name) / f"{len(self._made)}.zip"
        name = source.resolve().name
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for member, path in sorted(_members(source, name)):
                _add(archive, member, path)
        with target.open("rb") as stream:
            return Archive(target, hashlib.file_digest(stream, "sha256").hexdigest(), name)


def _members(source: Path, name: str) -> Iterator[tuple[str, Path]]:
    if source.is_file():
        yield name, source
        return
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{name}/{path.relative_to(source).as_posix()}", path


def _add(archive: zipfile.ZipFile, member: str, path: Path) -> None:
    """One file, with no more of its history than whether it can be run: the same bytes give the same archive."""
    info = zipfile.ZipInfo(member, _EPOCH)
    info.create_system = 3  # Unix, also where a cockpit runs elsewhere
    info.external_attr = (0o100755 if os.access(path, os.X_OK) else 0o100644) << 16
    info.file_size = path.stat().st_size
    with path.open("rb") as source, archive.open(info, "w") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def archives(packed: Mapping[str, Archive]) -> list[Archive]:
    """Each archive once."""
    return list({a.sha256: a for a in packed.values()}.values())


def main(argv: Sequence[str]) -> int:
    """Print the archive of a local path, as a dry run does: `python -m cockpit.engine.deliver PATH > FILE`."""
    packing = Packing()
    try:
        for archive in packing.pack(ServerSpec(name="this", files=dict.fromkeys(argv, ""))).values():
            with archive.path.open("rb") as source:
                shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    except ConfigError as e:
        sys.stderr.write(f"{e}\n")
        return int(e.exit_code)
    finally:
        packing.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
