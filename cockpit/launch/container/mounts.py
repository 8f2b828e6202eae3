"""A mount as docker and podman read it: one field of comma-separated values, quoted as Go's encoding/csv reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the server, `source`, at `target` in the container."""

    source: str
    target: str
    readonly: bool = False


def csv(mount: Mount) -> str:
    """The word after --mount. Neither colons nor commas, spaces, quotes or newlines in a path mean anything there."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}", *(["readonly"] * mount.readonly)]
    return ",".join(map(quote, fields))


def quote(field: str) -> str:
    """A field of comma-separated values; in quotes where it holds what ends one, or what the agent fills in may."""
    ends = "${" in field or any(c in field for c in ',"\r\n')
    return '"' + field.replace('"', '""') + '"' if ends else field
