"""The live screen: charts, telemetry, runs and log of one group, painted by one timer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from cockpit.tui import feed as marks
from cockpit.tui import keys
from cockpit.tui.feed import Feed
from cockpit.tui.verdict import Headline, full_text, headline
from cockpit.tui.widgets.chart import Chart, Track
from cockpit.tui.widgets.header import Header
from cockpit.tui.widgets.keybar import KeyBar
from cockpit.tui.widgets.panel import Panel
from cockpit.tui.widgets.runs import RunsPanel
from cockpit.tui.widgets.servers import ServersPanel
from cockpit.tui.widgets.tail import Tail
from cockpit.tui.widgets.verdict import VerdictPanel
from cockpit.tui.words import run_name

if TYPE_CHECKING:
    from cockpit.tui.app import CockpitApp

PAINT_HZ = 10.0
SLOW_S = 0.5  # charts, runs and header are painted no more often
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class LiveScreen(Screen[None]):
    """Subscribes to nothing itself: the app's feed takes everything in, the timer here paints what has changed."""

    CSS_PATH = "live.tcss"
    BINDINGS = [*keys.bindings()]  # noqa: RUF012
    ALLOW_IN_MAXIMIZED_VIEW = "Header, KeyBar"

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._slow_at = 0.0
        self._paused = False
        self._chosen_speed: float | None = None

    def compose(self) -> ComposeResult:
        """Top to bottom as it is seen."""
        yield Header(self._feed, id="head")
        with Horizontal(id="charts"):
            yield Chart("loss", robust=False, id="loss")
            yield Chart(f"tokens/s · over {marks.SPEED_STEPS} steps", robust=True, id="speed")
        with Horizontal(id="middle"):
            yield ServersPanel(self._feed, id="servers")
            yield RunsPanel(self._feed, id="runs")
        with Vertical(id="bottom"):
            yield Tail(self._feed, id="log")
            yield VerdictPanel(id="verdict")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Look up the panels once, and start the one timer."""
        self._head = self.query_one(Header)
        self._loss = self.query_one("#loss", Chart)
        self._speed_chart = self.query_one("#speed", Chart)
        self._servers = self.query_one(ServersPanel)
        self._runs = self.query_one(RunsPanel)
        self._tail = self.query_one(Tail)
        self._verdict = self.query_one(VerdictPanel)
        self._keys = self.query_one(KeyBar)
        self._servers.border_title = "servers"
        self._tail.focus()
        self._keys.show(keys.bar(self.mode))
        self._timer = self.set_interval(1 / PAINT_HZ, self.paint)

    @property
    def cockpit(self) -> CockpitApp:
        """The app, by its own type."""
        return cast("CockpitApp", self.app)

    @property
    def speed(self) -> float:
        """How fast a replay plays when it is not paused: as chosen here, else as it was started."""
        if self._chosen_speed is not None:
            return self._chosen_speed
        # What does not say its speed plays in real time.
        return float(getattr(self.cockpit.session, "speed", 1.0))

    @property
    def mode(self) -> str:
        """Which keys do something now."""
        if self._feed.ended:
            return keys.ENDED
        return keys.REPLAY if self._feed.info and not self._feed.info.live else keys.LIVE

    def paint(self) -> None:
        """Repaint the panels that have something new, and nothing else."""
        feed = self._feed
        if feed.take(marks.BEGIN):
            self._begin()
        if feed.take(marks.END):
            self._end()
        if feed.take(marks.LOG):
            self._tail.sync()
        now = time.monotonic()
        if now - self._slow_at >= SLOW_S:
            self._slow_at = now
            self._paint_slowly()

    def _paint_slowly(self) -> None:
        if self._feed.take(marks.SERVERS):
            self._fit()
            self._servers.repaint()
        elif self._servers.beat():
            self._servers.repaint()
        if self._feed.take(marks.CHARTS):
            self._draw_charts()
        if self._feed.take(marks.RUNS):
            self._runs.sync()
            self._head.repaint()

    def _draw_charts(self) -> None:
        losses: list[Track] = []
        speeds: list[Track] = []
        for server in self._feed.servers.values():
            current = self._feed.current(server.name)
            runs = [r for r in self._feed.runs.values() if r.server == server.name and len(r.series)]
            others = [r for r in reversed(runs) if r is not current]
            for age, run in enumerate(([current] if current else []) + others):
                name = run_name(run)
                step, speed = run.series.step, self._feed.speed(run)
                losses.append(Track(run.run, server.name, name, server.side, age, step, run.series.loss))
                speeds.append(Track(run.run, server.name, name, server.side, age, step, speed))
        total = max((r.total for r in self._feed.runs.values() if r.total), default=None)
        self._loss.show(losses, total)
        self._speed_chart.show(speeds, total)

    def _begin(self) -> None:
        info = self._feed.info
        assert info is not None
        self.cockpit.begun(info)
        self._fit()
        self._tail.sync()
        self._say_mode()

    def _end(self) -> None:
        outcome = self._feed.outcome
        if outcome is None:
            self._head.verdict = Headline("error", self._feed.trouble or "")
        else:
            self._head.verdict = headline(outcome, self._feed.runs.values())
            if outcome.comparison is not None:
                comparison = outcome.comparison
                self._verdict.show(lambda width: full_text(comparison, width))
                self._show_verdict(True)
        self._head.add_class("ended")
        self._slow_at = 0.0  # the last word is painted at once
        self._servers.repaint()
        self._say_mode()
        self.cockpit.ended()

    def _say_mode(self) -> None:
        words = []
        if self.cockpit.stopping and not self._feed.ended:
            words.append("stopping…")
        if self.mode == keys.REPLAY:
            words.append("paused" if self._paused else f"×{self.speed:g}" if self.speed != 1 else "")
        self._head.mode = " ".join(w for w in words if w)
        self._head.repaint()
        self._keys.show(keys.bar(self.mode))

    def say_mode(self) -> None:
        """Show anew what the header and the key bar say of the session's mode."""
        self._say_mode()

    # Layout

    def on_resize(self, event: events.Resize) -> None:
        """What has no room is hidden: first the middle, then the charts."""
        self._fit(event.size.height)

    def _fit(self, height: int | None = None) -> None:
        height = height or self.size.height
        self.set_class(height < 17, "short")
        self.set_class(height < 11, "tiny")
        wanted = max(self._servers.comfortable(), len(self._feed.runs), 1) + 2
        share = 3 if self._servers.wanted() > len(self._feed.servers) else 4  # GPUs want more room
        self.query_one("#middle").styles.height = min(wanted, max(5, height // share))

    # Actions

    def action_follow(self) -> None:
        """Follow the log's end, or stay."""
        self._tail.set_follow(not self._tail.follow)

    def action_cycle_log(self) -> None:
        """All servers, then each of them."""
        order: list[str | None] = [None, *self._feed.servers]
        at = order.index(self._feed.logs.server)
        self._tail.set_view(order[(at + 1) % len(order)], self._feed.logs.wire)
        self._show_verdict(False)

    def action_wire(self) -> None:
        """Show or hide wire lines."""
        self._tail.set_view(self._feed.logs.server, not self._feed.logs.wire)

    def action_log_scale(self) -> None:
        """Change the scale of the loss."""
        self._loss.toggle_log()

    def action_zoom(self) -> None:
        """Fill the screen with the panel in focus, or go back."""
        if self.maximized is not None:
            self.minimize()
        elif isinstance(self.focused, Panel):
            self.maximize(self.focused, container=False)

    def action_verdict(self) -> None:
        """The verdict in the log's place, and back."""
        if self._feed.outcome is not None and self._feed.outcome.comparison is not None:
            self._show_verdict(not self.has_class("verdict"))

    def _show_verdict(self, show: bool) -> None:
        if show == self.has_class("verdict"):
            return
        self.minimize()
        self.set_class(show, "verdict")
        (self._verdict if show else self._tail).focus()

    def action_pause(self) -> None:
        """Hold a replay, or let it go on."""
        if self.mode == keys.REPLAY:
            self._chosen_speed = self.speed  # a paused session would say 0
            self._paused = not self._paused
            self._feed.hold(self._paused)
            self._pace()

    def action_pace(self, direction: int) -> None:
        """Play a replay faster or slower."""
        if self.mode == keys.REPLAY:
            at = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - self.speed))
            self._chosen_speed = SPEEDS[min(len(SPEEDS) - 1, max(0, at + direction))]
            self._pace()

    def _pace(self) -> None:
        session = self.cockpit.session
        if session is not None:
            session.pace(0.0 if self._paused else self.speed)
        self._say_mode()

    def action_stop(self) -> None:
        """Ask whether the group shall be stopped."""
        if self.mode == keys.LIVE:
            self.cockpit.ask_stop()
