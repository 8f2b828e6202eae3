"""Telemetry: a line a server, and below it its GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from textual.strip import Strip

from cockpit.core.gpu import number
from cockpit.core.text import printable
from cockpit.tui import words
from cockpit.tui.feed import Feed, ServerView, load_of
from cockpit.tui.widgets import gpus
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
        """All lines that the servers and their devices take at the size they have."""
        width, height = self.size.width, self.size.height
        return 0, self._count(width, self._cell_rows(width, height))

    def wanted(self) -> int:
        """How many lines would show everything."""
        return self._count(0, 0)

    def _cell_rows(self, width: int, height: int) -> int:
        """How many lines a row of cells takes; 0 where there is room for a line a GPU."""
        return next((rows for rows in (0, 3, 2) if self._count(width, rows) <= height), 1)

    def _count(self, width: int, rows: int) -> int:
        devices = [len(server.now.devices) for server in self._feed.servers.values()]
        return sum(1 + (rows * -(-n // gpus.per_row(width)) if rows else n) for n in devices)

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
        cells = self._cell_rows(width, height)
        spare = height - self._count(width, cells) >= len(self._feed.servers)  # room for a second line a server
        for server in self._feed.servers.values():
            lines += self._server(server, width, two=spare and width < _WIDE, short=cells > 0 and width < _WIDE)
            fade = self._fade(server)
            if cells:
                lines += gpus.cells(server.devices, width, cells, self.look, fade)
            else:
                lines += [gpus.line(server.now, d, width, self.look, fade) for d in server.devices]
        ground = self.look("foreground")
        if not lines:
            lines = [[("no server yet", self.look("muted"))]]
        return [strip(parts, width, ground) for parts in lines[self.top : self.top + height]]

    def _server(self, server: ServerView, width: int, *, two: bool, short: bool) -> list[list[Part]]:
        look = self.look
        names = min(16, max(len(n) for n in self._feed.servers))
        head: list[Part] = [(f"{server.name[:names]:<{names}} ", look.side(server.side, bold=True))]
        if server.now.at_ns is None:
            return [[*head, (printable(server.now.gap or "no sample yet"), look("muted"))]]
        return self._two_lines(server, head, width) if two else [self._one_line(server, head, width, short=short)]

    def _one_line(self, server: ServerView, head: list[Part], width: int, *, short: bool) -> list[Part]:
        """Everything that has room, from what matters most to what matters least; the age always has.

        A `short` one has no bar: the GPUs' cells below it show more.
        """
        fade = self._fade(server)
        tail = self._tail(server, width // 3)
        bar = 0 if short else max(4, min(24, (width - len(head[0][0]) - 40) // 3))
        parts = [*head, *self._load(server, bar, fade)]
        left = width - _length(parts) - _length(tail)
        memory, *power = self._facts(server, fade)
        trace = [self._trace(server, fade)] if width >= 90 else []
        for choices in (power, [memory]) if short else ([memory], power, trace):
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
        first = [*head, *load, memory] if _length(load) + len(memory[0].rstrip()) <= room else [*head, *load]
        return [first, [indent, *second, *tail]]

    def _load(self, server: ServerView, width: int, fade: float) -> list[Part]:
        look, load = self.look, load_of(server.now)
        what = "gpu" if server.now.devices else "cpu"
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
        plain, muted = self.look("foreground", fade=fade), self.look("muted")
        devices = server.devices
        used, total = gpus.memory(devices) or (None, None) if devices else _host_memory(server)
        watts, missing = gpus.power(devices) if devices else (_host(server, "power_w"), 0)
        what = "vram" if devices else "mem"
        if used is None or (total is None and not devices):
            memory: Part = (f"{what} n/a ", muted)
        else:
            has = words.gib(used)
            digits = 1 if has < 100 else 0
            memory = (f"{what} {has:.{digits}f}{f'/{words.gib(total):.0f}' if total else ''} GiB ", plain)
        if watts is not None:
            said = f"{watts:,.0f} W "
            of = f"({len(devices) - missing} of {len(devices)} GPUs) " if missing else ""
            return [memory, (said + of, plain), *([(said, plain)] if of else [])]
        whys = [self._why_no_power(server), "no RAPL" if not devices else "", ""]
        return [memory, *((f"power n/a ({why}) " if why else "power n/a ", muted) for why in whys)]

    def _why_no_power(self, server: ServerView) -> str:
        for device in server.devices:
            if "power_w" in device.unavailable:
                return printable(device.unavailable["power_w"][1])
        reasons = (server.now.hello or {}).get("unavailable") or {}
        if isinstance(reasons, Mapping) and reasons.get("power_w"):
            return printable(str(reasons["power_w"]))
        return "the driver gives none" if server.now.devices else "no RAPL"

    def _tail(self, server: ServerView, room: int) -> list[Part]:
        """Source and age of the sample; what says less goes first where there is little room."""
        source = server.source or "source?"
        now = server.now
        if now.gap:
            return [(f"{source} · {printable(now.gap)}", self.look("warn"))]
        unanswered = [d.stale_s for d in now.devices.values() if d.stale_s is not None]
        if unanswered and not self._feed.ended:
            return [(f"{source} · stale {words.age(max(unanswered))}", self.look("warn"))]
        stale = self._stale(server)
        old = "" if self._feed.ended or len(source) + 12 > room else " old"
        return [(f"{source} · {self._age(server)}{old}", self.look("warn" if stale else "muted"))]

    def _age(self, server: ServerView) -> str:
        if server.now.taken is None:
            return ""
        return "last" if self._feed.ended else words.age(self._feed.now() - server.now.taken)

    def _stale(self, server: ServerView) -> bool:
        if server.now.taken is None or self._feed.ended:
            return False
        return self._feed.now() - server.now.taken > _STALE_S

    def _fade(self, server: ServerView) -> float:
        return 0.5 if self._stale(server) else 0.0


def _length(parts: Iterable[Part]) -> int:
    return sum(len(text) for text, _ in parts)


def _host(server: ServerView, name: str) -> float | None:
    known = server.now.host.get(name)
    return None if known is None else number(known.value)


def _host_memory(server: ServerView) -> tuple[float | None, float | None]:
    return _host(server, "mem_used"), _host(server, "mem_total")
