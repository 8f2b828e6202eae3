"""Which machines a watch of the sensors is of: a profile's servers, or server files by name."""

from __future__ import annotations

from collections.abc import Sequence

from cockpit.core.errors import UsageError
from cockpit.engine.watch import Machine, machines
from cockpit.telemetry.live import Wanted

_HZ = 10.0


def chosen(
    profile: str | None, overrides: Sequence[str], servers: str | None, hz: float | None
) -> tuple[list[Machine], float | None]:
    """The machines, and the profile's limit of heat (degC) or None. Raises ConfigError, UsageError."""
    from cockpit.config import load, server_spec
    from cockpit.config.models import TelemetrySection

    names = tuple(name for name in servers.split(",") if name) if servers is not None else None
    if names == ():
        raise UsageError("--servers names no server.", hint="--servers A,B")
    if profile is None:
        if overrides:
            raise UsageError(f"{overrides[0]} changes a profile, and none is named.", hint="Say --profile P.")
        specs, section = [server_spec(name) for name in names or ()], TelemetrySection()
    else:
        base = load(profile, tuple(overrides), servers=names).base
        specs, section = [server.spec(name, base) for name, server in base.servers.items()], base.telemetry
    rate = hz or section.hz or _HZ
    wanted = {
        spec.name: Wanted(
            spec.vendor if spec.vendor in {"nvidia", "amd", "cpu"} else "auto",
            None if spec.gpus is None else tuple(spec.gpus),
            rate,
            section.idle_end_s,
        )
        for spec in specs
    }
    return machines(specs, wanted), section.temp_alarm_c
