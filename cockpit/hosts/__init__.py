"""Machines: the one door to processes, and to files that are not the cockpit's own."""

from __future__ import annotations

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import Access
from cockpit.hosts.base import Completed, Entry, FileTruncated, Host, ServerDiskFull, ServerTimeout
from cockpit.hosts.local import LocalHost

__all__ = [
    "Completed",
    "Entry",
    "FileTruncated",
    "Host",
    "LocalHost",
    "ServerDiskFull",
    "ServerTimeout",
    "connect",
]


def connect(access: Access) -> Host:
    """The machine that `access` leads to; nothing travels before its first method is called.

    Raises LaunchRefused where this version has no way to reach it.
    """
    if access.address == "local":
        return LocalHost()
    raise LaunchRefused(
        f"Server address {access.address!r} cannot be used: this version reaches the machine it runs on, "
        "not yet servers over SSH.",
        hint="Set the server's address to 'local'.",
    )
