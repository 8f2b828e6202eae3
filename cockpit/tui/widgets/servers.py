"""Telemetry: a line a server, and one below it for each of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from textual.strip import Strip

from cockpit.tui import words
from cockpit.tui.feed import Feed, ServerView, load_of
from cockpit.tui.widgets.panel import Part, Scroller, strip

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDE = 64  # columns in which one line a server says all of it
_STALE_S = 5.0  # an older sample is shown faded: it no longer says how things are


class ServersPanel(Scroller):
    """Load, memory, power and the age of the last sample; what is not known says why."""

    def __init__(self, feed: Feed, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._feed = feed
        self._ages: list[str] = []

    def bounds(self) -> tuple[int, int]:
        """All lines that the servers and their devices take."""
        return 0, self.wanted()

    def wanted(self) -> int:
        """How many lines would show everything."""
        return sum(1 + len(_devices(s)) for s in self._feed.servers.values())

    def comfortable(self) -> int:
        """How many lines it takes until nothing has to be left out: two a server where they are short."""
        return self.wanted() + (len(self._feed.servers) if self.size.width < _WIDE else 0)

    def beat(self) -> bool:
        """Whether an age would be written otherwise than it stands there."""
        ages = [self._age(s) for s in self._feed.servers.values()]
        changed, self._ages = ages != self._ages, ages
        return changed

    def rows(self, width: int, height: int) -> list[Strip]:
        """The lines from `top` on."""
        lines: list[list[Part]] = []
        spare = height - self.wanted() >= len(self._feed.servers)  # room for a second line a server
        for server in self._feed.servers.values():
            lines += self._server(server, width, two=spare and width < _WIDE)
            lines += [self._device(server, d, width) for d in _devices(server)]
        ground = self.look("foreground")
        if not lines:
            lines = [[("no server yet", self.look("muted"))]]
        return [strip(parts, width, ground) for parts in lines[self.top : self.top + height]]

    def _server(self, server: ServerView, width: int, *, two: bool) -> list[list[Part]]:
        look = self.look
        names = min(16, max(len(n) for n in self._feed.servers))
        head: list[Part] = [(f"{server.name[:names]:<{names}} ", look.side(server.side, bold=True))]
        if server.tick is None:
            return [[*head, (server.gap or "no sample yet", look("muted"))]]
        return self._two_lines(server, head, width) if two else [self._one_line(server, head, width)]

    def _one_line(self, server: ServerView, head: list[Part], width: int) -> list[Part]:
        """Everything that has room, from what matters most to what matters least; the age always has."""
        fade = self._fade(server)
        tail = self._tail(server, width // 3)
        parts = [*head, *self._load(server, max(4, min(24, (width - len(head[0][0]) - 40) // 3)), fade)]
        left = width - _length(parts) - _length(tail)
        memory, *power = self._facts(server, fade)
        trace = [self._trace(server, fade)] if width >= 90 else []
        for choices in ([memory], power, trace):
            part = next((c for c in choices if len(c[0]) <= left), None)
            if part is not None:
                parts.append(part)
                left -= len(part[0])
        return [*parts, *tail]

    def _two_lines(self, server: ServerView, head: list[Part], width: int) -> list[list[Part]]:
        fade = self._fade(server)
        memory, *power = self._facts(server, fade)
        indent = (" " * len(head[0][0]), self.look("muted"))
        room = width - len(indent[0])
        tail = self._tail(server, room // 2)
        load = self._load(server, max(4, min(24, room - 10 - len(memory[0]))), fade)
        left = room - _length(tail)
        second = [next((c for c in power if len(c[0]) <= left), power[-1])]
        if _length(second) + 17 <= left:
            second.append(self._trace(server, fade))
        return [[*head, *load, memory], [indent, *second, *tail]]

    def _load(self, server: ServerView, width: int, fade: float) -> list[Part]:
        look, load = self.look, load_of(server.tick or {})
        what = "gpu" if _devices(server) else "cpu"
        if load is None:
            return [(f"{what} n/a ", look("muted"))]
        full = min(width * 2, int(load * width * 2 + 0.5))
        done = "━" * (full // 2) + ("╸" if full % 2 else "")
        return [
            (f"{what} ", look("muted")),
            (done, look(look.heat(load), fade=fade)),
            ("━" * (width - len(done)), look("panel", fade=0.4)),
            (f" {load:4.0%} ", look("foreground", fade=fade)),
        ]

    def _trace(self, server: ServerView, fade: float) -> Part:
        values = list(server.history)[-16:]
        text = "".join(" " if math.isnan(v) else _BLOCKS[1 + min(7, int(v * 7.99))] for v in values)
        return (f"{text:<16} ", self.look.side(server.side, fade=max(0.3, fade)))

    def _facts(self, server: ServerView, fade: float) -> list[Part]:
        """Memory, then power, said at length and, where it is unknown, also shortly."""
        host: Mapping[str, Any] = (server.tick or {}).get("host") or {}
        plain, muted = self.look("foreground", fade=fade), self.look("muted")
        used, total = host.get("mem_used"), host.get("mem_total")
        if used is None or total is None:
            memory: Part = ("mem n/a ", muted)
        else:
            memory = (f"mem {words.gib(used):.1f}/{words.gib(total):.0f} GiB ", plain)
        watts = [d.get("power_w") for d in _devices(server)] or [host.get("power_w")]
        known = [w for w in watts if w is not None]
        if known:
            return [memory, (f"{math.fsum(known):,.0f} W ", plain)]
        whys = [self._why_no_power(server), "no RAPL" if not _devices(server) else "", ""]
        return [memory, *((f"power n/a ({why}) " if why else "power n/a ", muted) for why in whys)]

    def _why_no_power(self, server: ServerView) -> str:
        reasons = (server.hello or {}).get("unavailable") or {}
        if isinstance(reasons, Mapping) and reasons.get("power_w"):
            return str(reasons["power_w"])
        return "the driver gives none" if _devices(server) else "no RAPL"

    def _tail(self, server: ServerView, room: int) -> list[Part]:
        """Source and age of the sample; what says less goes first where there is little room."""
        hello = server.hello or {}
        source = str(hello.get("backend") or "source?")
        if server.gap:
            return [(f"{source} · {server.gap}", self.look("warn"))]
        stale = self._stale(server)
        old = "" if self._feed.ended or len(source) + 12 > room else " old"
        return [(f"{source} · {self._age(server)}{old}", self.look("warn" if stale else "muted"))]

    def _age(self, server: ServerView) -> str:
        if server.taken is None:
            return ""
        return "last" if self._feed.ended else words.age(self._feed.now() - server.taken)

    def _stale(self, server: ServerView) -> bool:
        if server.taken is None or self._feed.ended:
            return False
        return self._feed.now() - server.taken > _STALE_S

    def _fade(self, server: ServerView) -> float:
        return 0.5 if self._stale(server) else 0.0

    def _device(self, server: ServerView, device: Mapping[str, Any], width: int) -> list[Part]:
        look = self.look
        fade = self._fade(server)
        load = device.get("util")
        parts: list[Part] = [(f"  {device.get('index', '?'):>2} ", look("muted"))]
        parts += self._load_bar(load, max(4, min(16, width // 5)), fade)
        for text in _device_facts(device):
            parts.append((text, look("foreground", fade=fade)))
        return parts

    def _load_bar(self, load: float | None, width: int, fade: float) -> list[Part]:
        if load is None:
            return [("util n/a ", self.look("muted"))]
        full = int(min(1.0, load) * width + 0.5)
        bar = [("━" * full, self.look(self.look.heat(load), fade=fade))]
        return [
            *bar,
            ("━" * (width - full), self.look("panel", fade=0.4)),
            (f" {load:4.0%} ", self.look("foreground")),
        ]


def _length(parts: Iterable[Part]) -> int:
    return sum(len(text) for text, _ in parts)


def _devices(server: ServerView) -> list[Mapping[str, Any]]:
    return list((server.tick or {}).get("devices") or ())


def _device_facts(device: Mapping[str, Any]) -> Iterable[str]:
    used, total = device.get("mem_used"), device.get("mem_total")
    if used is not None:
        yield f"{words.gib(used):.1f}{f'/{words.gib(total):.0f}' if total else ''} GiB "
    power, temperature = device.get("power_w"), device.get("temp_c")
    yield f"{power:.0f} W " if power is not None else "power n/a "
    if temperature is not None:
        yield f"{temperature:.0f} °C"
