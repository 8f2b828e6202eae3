"""What `--stage purge` would remove on each server, before it does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cockpit.core.errors import ServerError
from cockpit.core.text import printable, size
from cockpit.engine.admit import Checked, Connect, close

if TYPE_CHECKING:
    from cockpit.core.records import Access, QueuePlan

_TIMEOUT_S = 300.0
_MOST_LINES = 50


@dataclass(frozen=True, slots=True)
class Doomed:
    """The prepared data of one machine: what lies directly in `folder`, with its size in bytes."""

    machine: str
    folder: str
    entries: tuple[tuple[str, int], ...]

    def lines(self) -> Iterator[str]:
        """What would go, a line each."""
        whole = sum(by for _, by in self.entries)
        if not self.entries:
            yield f"{self.machine}: nothing in {self.folder}"
            return
        yield f"{self.machine}: {size(whole)} in {self.folder}"
        for name, by in self.entries[:_MOST_LINES]:
            yield f"  {printable(name)}  {size(by)}"
        if len(self.entries) > _MOST_LINES:
            yield f"  and {len(self.entries) - _MOST_LINES} more"


def purges(checked: Checked) -> bool:
    """Whether the group's runs do nothing but purge."""
    return all(s.stage == "purge" for r in checked.group.runs for s in r.stages)


async def preview(checked: Checked, connect: Connect) -> list[Doomed]:
    """What the group's purge would remove, machine by machine. Raises ServerError."""
    queues = [q for q in checked.group.queues if any(r.server not in checked.refused for r in q.runs)]
    machines = dict.fromkeys((access, q.workdir) for q in queues for access in _machines(q))
    return list(await asyncio.gather(*(_look(access, workdir, connect) for access, workdir in machines)))


def _machines(queue: QueuePlan) -> tuple[Access, ...]:
    return queue.nodes or (queue.access,)


async def _look(access: Access, workdir: str | None, connect: Connect) -> Doomed:
    host = connect(access)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            folder = f"{await host.workdir(workdir)}/cache"
            found: defaultdict[str, int] = defaultdict(int)
            for entry in await host.listdir(folder):
                found[entry.path.split("/", 1)[0]] += entry.size
            return Doomed(host.name, folder, tuple(sorted(found.items())))
    except TimeoutError:
        raise ServerError(f"{host.name} did not list its prepared data within {_TIMEOUT_S:.0f} s.") from None
    finally:
        await close([host])
