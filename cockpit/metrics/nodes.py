"""Telemetry of the nodes that trained together, taken as one machine's.

What adds up (power, energy, GPUs) is known only where every node's part is: a sum with a part missing is no sum. Of
what has a maximum the largest known one counts, and the note names who was not seen. Each node's telemetry bears its
own clock; all are read by the clock of the node whose iterations count, as far as pings told how they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cockpit.metrics import energy, origin, telemetry, throttling
from cockpit.metrics.energy import Energy
from cockpit.metrics.lineup import line_up
from cockpit.metrics.telemetry import Reading, Telemetry

Window = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Nodes:
    """One Telemetry a node, in their order; `names` are what notes call them.

    `clock_errors` says how far each one's times may be off (s) by the clock of the node whose iterations count; None
    where that was not measured, and the clocks are taken to agree.
    """

    each: tuple[Telemetry, ...]
    names: tuple[str, ...]
    clock_errors: tuple[float | None, ...] = ()

    @property
    def first(self) -> Telemetry:
        """The first node's."""
        return self.each[0]

    def devices(self) -> Iterator[Mapping[str, Any]]:
        """The columns of every GPU of every node."""
        for one in self.each:
            yield from one.devices.values()

    def count(self) -> int | None:
        """GPUs of all nodes; None where one of them does not say."""
        counts = [one.count() for one in self.each]
        known = [n for n in counts if n is not None]
        return sum(known) if len(known) == len(counts) else None

    def model(self) -> str | None:
        """The GPUs' model; several joined; None without a GPU."""
        return " + ".join(dict.fromkeys(m for one in self.each if (m := one.model()))) or None

    def span(self, meta: Mapping[str, Any]) -> Window:
        """From RUNNING to the run's end, which the first node tells, by the clock that the iterations bear."""
        found = origin.span(meta)
        return None if found is None else (found[0] + self.first.moved_s, found[1] + self.first.moved_s)

    def energy(self, window: Window) -> Energy:
        """Energy (J) of all nodes in `window`, None being all readings; see energy.energy."""
        return energy.total([energy.energy(one, window) for one in self.each], self.names)

    def energy_before(self, start: float | None, end: float) -> Energy:
        """Energy (J) of all nodes from `start`, else each one's first reading, to `end`."""

        def before(one: Telemetry) -> Energy:
            if not len(one):
                return Energy(None, why="no telemetry")
            first = float(one.t[0]) if start is None else start
            return energy.energy(one, (first, max(first, end)))

        return energy.total([before(one) for one in self.each], self.names)

    def power_w(self, window: Window) -> Reading:
        """Mean power (W) of all nodes in `window`."""
        return self._sum(lambda one: energy.power_w(one, window))

    def idle_w(self, began: float | None, run: str | None) -> Reading:
        """Mean power (W) of all nodes before the run began; see energy.idle_w."""
        return self._sum(lambda one: energy.idle_w(one, began, run))

    def node_power_w(self, window: Window) -> Reading:
        """Mean power (W) of the whole nodes in `window`, by their own sensors."""
        return self._sum(lambda one: energy.node_power_w(one, window))

    def node_energy_j(self, window: Window) -> Reading:
        """Energy (J) of the whole nodes in `window`, by their own sensors."""
        return self._sum(lambda one: energy.node_energy_j(one, window))

    def power_kinds(self) -> list[str]:
        """What the GPUs' power is: instant, avg1s, socket; those that hello names."""
        told = {str(k) for one in self.each for d in one.identities() if (k := d.get("power_kind"))}
        return sorted(told)

    def hottest(self, window: Window) -> Reading:
        """The highest temperature (degC) of any node's GPU in `window`."""
        return self._largest(lambda one: telemetry.hottest(one, window))

    def throttled(self, window: Window) -> Reading:
        """Share of the time (0..1) in which a GPU was throttled, of the node where that was longest."""
        return self._largest(lambda one: throttling.throttled(one, window))

    def peak_memory(self, window: Window) -> Reading:
        """The most memory (By) that any GPU used in `window`; no value and no note where none reports it."""

        def most(one: Telemetry) -> Reading:
            inside = one.inside(window)
            return Reading(telemetry.peak(c["mem_used"][inside] for c in one.devices.values()))

        return self._largest(most)

    def peak_host_memory(self) -> Reading:
        """The most memory (By) that any node used; no value and no note where none reports it."""
        return self._largest(lambda one: Reading(telemetry.peak([one.host["mem_used"]])))

    def _sum(self, read: Callable[[Telemetry], Reading]) -> Reading:
        found = [read(one) for one in self.each]
        if len(found) == 1:
            return found[0]
        values = [one.value for one in found if one.value is not None]
        if len(values) < len(found):
            missing = [
                f"{n}: {r.note or 'not known'}" for n, r in zip(self.names, found, strict=True) if r.value is None
            ]
            return Reading(None, "; ".join(missing))
        said = "; ".join(dict.fromkeys(r.note for r in found if r.note))
        return Reading(math.fsum(values), f"{len(found)} nodes{', each ' if said else ''}{said}")

    def _largest(self, read: Callable[[Telemetry], Reading]) -> Reading:
        found = [(read(one), name) for one, name in zip(self.each, self.names, strict=True)]
        if len(found) == 1:
            return found[0][0]
        known = [(r.value, name, r.note) for r, name in found if r.value is not None]
        if not known:
            return found[0][0]
        value, name, note = max(known, key=lambda one: one[0])
        unseen = [n for r, n in found if r.value is None]
        without = f"not known of {', '.join(unseen)}" if unseen else None
        return Reading(value, "; ".join(x for x in (f"{name}{', ' + note if note else ''}", without) if x))


Lines = Iterable[Mapping[str, Any]]


def read(streams: Sequence[Lines], meta: Mapping[str, Any]) -> Nodes:
    """The telemetry lines of each node. A node that run.json names and nobody handed over has said nothing."""
    listed = (meta.get("handle") or {}).get("nodes") or ()
    count = max(1, len(streams), len(listed))
    lines = [*streams, *([()] * (count - len(streams)))]
    found = tuple(telemetry.read_ticks(each, meta.get("gpus")) for each in lines)
    log_node = (meta.get("plan") or {}).get("log_node")
    lined, errors = line_up(found, log_node if isinstance(log_node, int) else 0)
    return Nodes(lined, _names(listed, count), errors)


def _names(listed: Sequence[Any], count: int) -> tuple[str, ...]:
    """Addresses where run.json knows them, else numbers."""
    found = []
    for i in range(count):
        node = listed[i] if i < len(listed) and isinstance(listed[i], Mapping) else {}
        address = (node.get("access") or {}).get("address")
        found.append(f"node {address or i}")
    return tuple(found)
