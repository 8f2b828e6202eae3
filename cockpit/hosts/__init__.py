"""Machines: the one door to processes, and to files that are not the cockpit's own."""

from __future__ import annotations

from cockpit.core.records import Access
from cockpit.hosts.base import (
    Completed,
    Entry,
    FileTruncated,
    Host,
    LoginRefused,
    ServerDiskFull,
    ServerLost,
    ServerTimeout,
)
from cockpit.hosts.local import LocalHost

__all__ = [
    "Completed",
    "Entry",
    "FileTruncated",
    "Host",
    "LocalHost",
    "LoginRefused",
    "ServerDiskFull",
    "ServerLost",
    "ServerTimeout",
    "connect",
]


def connect(access: Access) -> Host:
    """The machine that `access` leads to; nothing travels before its first method is called."""
    if access.address == "local":
        return LocalHost()
    from cockpit.hosts.ssh import SshHost  # asyncssh takes its time to import

    return SshHost(access)
