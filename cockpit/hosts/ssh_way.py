"""From an Access to a connection: the SSH configuration, jump hosts, known keys, one login."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import asyncssh

from cockpit.core.records import Access
from cockpit.hosts.base import LoginRefused
from cockpit.hosts.ssh_errors import Way, encrypted_keys, explain, missing_file

_FAST = "aes128-gcm@openssh.com"  # twice the throughput of the default at half the work
_MOST_JUMPS = 8
_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


class _Client(asyncssh.SSHClient):
    """Notes the host key that was offered where none that is known fits; it is never accepted here."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked only for a key that is not known."""
        self._way.offered = key
        return False


async def configured(access: Access) -> tuple[Way, asyncssh.SSHClientConnectionOptions]:
    """What the configuration says of a server. Raises LoginRefused where it, or a file it names, cannot be used."""
    user, _, host = access.address.rpartition("@")
    # A connection that is held for days lends nobody the user's keys, whatever ForwardAgent says.
    values: dict[str, Any] = {"host": host, "agent_forwarding": False}
    if user:
        values["username"] = user
    if access.port is not None:
        values["port"] = access.port
    # () is the user's own ~/.ssh/config; asyncssh's options take their default, None, for no configuration at all.
    values["config"] = [_file("SSH configuration", access.config)] if access.config is not None else ()
    if access.identity is not None:
        values |= {"client_keys": [_file("identity file", access.identity)], "ignore_encrypted": True}
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(**values)
    except FileNotFoundError as e:
        raise missing_file("identity file", str(e.filename)) from e
    except (asyncssh.KeyImportError, asyncssh.ConfigParseError, ValueError, OSError) as e:
        raise LoginRefused(f"The SSH settings of {access.address} cannot be used: {e}.") from e
    way = Way(access.address, access, str(options.host), int(options.port), str(options.username))
    way.alias = options.host_key_alias
    await asyncio.to_thread(_read_files, way, options)
    return way, options


def _read_files(way: Way, options: asyncssh.SSHClientConnectionOptions) -> None:
    """What the files that the configuration names say: which host keys are known, which keys need a passphrase."""
    listed = options.known_hosts if isinstance(options.known_hosts, list) else []
    # asyncssh takes an empty list for "check nothing"; for ssh it means that no key is known.
    named = [Path(str(path)).expanduser() for path in listed or _KNOWN]
    way.known_files = [str(path) for path in named if path.is_file()]
    identity = way.access.identity
    named_keys = cast("list[str] | tuple[()] | None", options.config.get("IdentityFile", ()))
    files = [identity] if identity is not None else named_keys or ()
    way.encrypted = encrypted_keys([Path(str(f)).expanduser() for f in files])
    try:
        way.trusted = (
            asyncssh.read_known_hosts(way.known_files) if way.known_files else asyncssh.import_known_hosts("")
        )
    except (OSError, ValueError) as e:
        raise LoginRefused(f"{way.known_files[0]} cannot be read as known hosts: {e}.") from e
    port = way.port if way.port != 22 else None
    way.known = list(way.trusted.match(way.alias or way.host, "", port)[0])


def _file(what: str, path: str) -> str:
    full = Path(path).expanduser()
    if not full.is_file():
        raise missing_file(what, str(full))
    return str(full)


async def login(access: Access, jumps: int = 0) -> asyncssh.SSHClientConnection:
    """Connect and log in, through the jump hosts that the configuration names, each checked as strictly.

    Raises ServerLost, LoginRefused, ServerError.
    """
    way, options = await configured(access)
    tunnel: asyncssh.SSHClientConnection | None = None
    try:
        if isinstance(options.tunnel, str) and options.tunnel:
            tunnel = await _jump(access, options.tunnel, jumps)
        return await _connect(way, options, tunnel)
    except BaseException:
        if tunnel is not None:
            tunnel.abort()
        raise


async def _jump(access: Access, hops: str, jumps: int) -> asyncssh.SSHClientConnection:
    """The connection to the last of `hops`, "USER@HOST:PORT,..."; the first may have jump hosts of its own."""
    if jumps >= _MOST_JUMPS:
        raise LoginRefused(
            f"{access.address} has more than {_MOST_JUMPS} jump hosts: the configuration runs in a ring."
        )
    connection: asyncssh.SSHClientConnection | None = None
    try:
        for hop in hops.split(","):
            host, _, port = hop.strip().removeprefix("ssh://").rpartition(":")
            host, port = (host, port) if host and port.isdigit() else (hop.strip(), "")
            step = replace(access, address=host, port=int(port) if port else None, identity=None)
            if connection is None:
                connection = await login(step, jumps + 1)
            else:
                way, options = await configured(step)
                connection = await _connect(way, options, connection)
    except BaseException:
        if connection is not None:
            connection.abort()
        raise
    assert connection is not None
    return connection


async def _connect(
    way: Way, options: asyncssh.SSHClientConnectionOptions, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    access = way.access
    values: dict[str, Any] = {} if options.config.get("Ciphers") else {"encryption_algs": f"^{_FAST}"}
    try:
        async with asyncio.timeout(access.connect_timeout_s):
            connection = await asyncssh.connect(
                way.host,
                way.port,
                options=options,
                config=None,
                username=way.user,
                tunnel=tunnel,
                known_hosts=way.trusted,
                client_factory=lambda: _Client(way),
                connect_timeout=None,
                login_timeout=access.connect_timeout_s,
                keepalive_interval=access.keepalive_s,
                keepalive_count_max=access.keepalive_count,
                **values,
            )
    except (OSError, asyncssh.Error, ValueError) as e:
        # A server with other kinds of keys than the known ones says so, or just hangs up.
        if isinstance(e, asyncssh.KeyExchangeFailed | asyncssh.ConnectionLost | ConnectionResetError) and way.known:
            await _ask_key(way, tunnel)
            if way.offered is not None and way.offered not in way.known:
                e = asyncssh.HostKeyNotVerifiable("Host key is not trusted")
        raise explain(e, way) from e
    if tunnel is not None:
        connection.set_tunnel(tunnel)
    return connection


async def _ask_key(way: Way, tunnel: asyncssh.SSHClientConnection | None) -> None:
    """The host key of a server that has none of the kinds that are known for it."""
    try:
        async with asyncio.timeout(way.access.connect_timeout_s):
            way.offered = await asyncssh.get_server_host_key(way.host, way.port, tunnel=tunnel or (), config=None)
    except (OSError, asyncssh.Error):
        way.offered = None
