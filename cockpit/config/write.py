"""Writing a server file that every profile can take."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cockpit.config.find import user_folder
from cockpit.config.models import SERVER_NAME, Server
from cockpit.config.resolve import as_config_error
from cockpit.core.errors import ConfigError
from runners.compose import data_of, validate_data


def write_server(name: str, values: Mapping[str, Any] | Sequence[str], *, overwrite: bool) -> Path:
    """See cockpit.config.write_server."""
    text = server_text(name, values)
    path = user_folder() / "server" / f"{name}.yaml"
    if path.exists() and not overwrite:
        raise ConfigError(
            f"there is a server {name!r} already, in {path}.",
            hint="Say --force to overwrite it, or take another name.",
        )
    put(path, text)
    return path


def server_text(name: str, values: Mapping[str, Any] | Sequence[str]) -> str:
    """The text of a server file with what `values` say. Raises ConfigError."""
    if not SERVER_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no server name.", hint="Use letters, digits, _ and -, beginning with a letter or digit."
        )
    with as_config_error():
        data, words = (dict(values), ()) if isinstance(values, Mapping) else data_of(values, Server)
        server = validate_data(data, Server, words)
    return _yaml(_said(server.model_dump(mode="json"), data))


def _said(whole: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Of validated values those that were said, and not the defaults beside them."""
    out = {}
    for key in (k for k in whole if k in said):
        inner, mine = whole[key], said[key]
        fixed = isinstance(inner, Mapping) and isinstance(mine, Mapping) and key == "ssh"
        out[key] = _said(inner, mine) if fixed else inner
    return out


def put(path: Path, text: str) -> None:
    """Write the whole file or nothing. Raises ConfigError."""
    try:
        _put(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}.") from None


def _yaml(values: dict[str, Any]) -> str:
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_literal(values))) if values else "{}\n"


def _literal(value: Any) -> Any:
    """The value with ${ escaped, so that composing gives back the text and looks nothing up."""
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, str):
        if value == "???":
            raise ConfigError("a value cannot be ???, which stands for one that is missing.")
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def _put(path: Path, text: str) -> None:
    """Write the whole file or nothing, readable as the user's other files are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
