"""A server file by itself, without the profile that names it."""

from __future__ import annotations

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cockpit.config.find import find_servers
from cockpit.config.models import Profile, Server
from cockpit.config.resolve import as_config_error
from cockpit.core.errors import ConfigError, did_you_mean
from cockpit.core.records import ServerSpec
from runners.compose import validate_data


def server_spec(name: str) -> ServerSpec:
    """See cockpit.config.server_spec."""
    files = {info.name: info for info in find_servers()}
    if name not in files:
        raise ConfigError(f"there is no server file {name!r}.", hint=did_you_mean(name, files))
    if files[name].problem is not None:
        raise ConfigError(f"{files[name].problem}.", file=files[name].path)
    try:
        data = OmegaConf.to_container(OmegaConf.load(files[name].path), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0], file=files[name].path) from None
    values = {str(k): v for k, v in data.items() if k != "defaults"} if isinstance(data, dict) else {}
    try:
        with as_config_error():
            server = validate_data(values, Server)
    except ConfigError as error:
        raise ConfigError(error.message, hint=error.hint, file=files[name].path) from None
    return server.spec(name, Profile.model_construct(timeout_s=None, stall_after_s=None, cooldown_s=None))
