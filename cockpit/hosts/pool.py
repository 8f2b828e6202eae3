"""One connection for all Hosts of one event loop that are reached in the same way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from cockpit.core.records import Access
from cockpit.hosts.openssh import OpensshLink
from cockpit.hosts.remote import Link
from cockpit.hosts.ssh_link import SshLink

_SESSIONS = 8  # at once for short commands: a sshd allows ten by default, and files are followed over one


class _Shared:
    def __init__(self, access: Access) -> None:
        self.link: Link = OpensshLink(access) if access.transport == "openssh" else SshLink(access)
        self.slots = asyncio.Semaphore(_SESSIONS)
        self.users = 0


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Access, _Shared]] = WeakKeyDictionary()


class Pooled:
    """One Host's part of a shared link. It is bound to the event loop that first uses it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._mine: _Shared | None = None

    def _get(self) -> _Shared:
        if self._mine is None:
            links = _shared.setdefault(asyncio.get_running_loop(), {})
            if self._access not in links:
                links[self._access] = _Shared(self._access)
            self._mine = links[self._access]
            self._mine.users += 1
        return self._mine

    def link(self) -> Link:
        """The link, made at the first call."""
        return self._get().link

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for one of the sessions that a connection has for short commands."""
        async with self._get().slots:
            yield

    async def close(self) -> None:
        """The last user ends the connection. Harmless to repeat."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        mine.users -= 1
        if mine.users == 0:
            links = _shared.get(asyncio.get_running_loop(), {})
            if links.get(self._access) is mine:
                del links[self._access]
            await mine.link.close()
