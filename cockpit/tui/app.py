"""The app: owns the session and the feed, asks before it leaves, and never prints a traceback to the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from cockpit.core.errors import CockpitError, ConfigError, Exit
from cockpit.core.within import within
from cockpit.report import themes
from cockpit.tui.feed import Feed
from cockpit.tui.theming import Look, textual_theme, variables

if TYPE_CHECKING:
    from cockpit.engine.observer import GroupInfo, Session

_LEAVE_S = 5.0  # how long a detaching session may take before the screen closes regardless


class CockpitApp(App[None]):
    """The live screen on a session, or a welcome where there is none.

    `session_factory` and `demo` are called in a thread after the first paint. `theme` None takes the group's.
    """

    TITLE = "ekvi-cockpit"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "interrupt", show=False, priority=True, system=True)
    ]

    def __init__(
        self,
        session_factory: Callable[[], Session] | None = None,
        *,
        demo: Callable[[], Session] | None = None,
        theme: str | None = None,
    ) -> None:
        self._warnings: list[str] = []
        self.look = Look(self._load_theme(theme or themes.DEFAULT))
        super().__init__()
        self._factory, self._demo = session_factory, demo
        self._fixed_theme = theme is not None
        self.feed = Feed()
        self.session: Session | None = None
        self.stopping = False
        self._leave_after_stop = False
        self._code = int(Exit.OK)  # of a session that broke off
        self.refusal: CockpitError | None = None  # why there is no session
        self.crash: BaseException | None = None
        self._following = asyncio.Event()  # clear while the session runs
        self._following.set()
        self._apply(self.look.theme)

    # Start

    def get_default_screen(self) -> Screen[None]:
        """The first screen; what only the other one needs is not imported."""
        screen: Screen[None]
        if self._factory is None:
            from cockpit.tui.screens.welcome import WelcomeScreen

            screen = WelcomeScreen()
        else:
            from cockpit.tui.screens.live import LiveScreen

            screen = LiveScreen(self.feed)
        self.stylesheet.read_all(screen.css_path)  # textual does this for pushed screens only
        return screen

    def on_mount(self) -> None:
        """Begin to follow; take signals as wishes to leave, so that the terminal is put back in order."""
        loop = asyncio.get_running_loop()
        if not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._leave_now)
            loop.add_signal_handler(signal.SIGINT, lambda: self.call_later(self.action_interrupt))
        for text in self._warnings:
            self.notify(text, severity="warning", timeout=10, markup=False)
        if self._factory is not None:
            self.follow(self._factory)

    @property
    def has_demo(self) -> bool:
        """Whether there is a recorded duel to play."""
        return self._demo is not None

    def play_demo(self) -> None:
        """Change to the live screen and play the recorded duel there."""
        if self._demo is None:
            return
        from cockpit.tui.screens.live import LiveScreen

        self.push_screen(LiveScreen(self.feed))
        self.follow(self._demo)

    def follow(self, factory: Callable[[], Session]) -> None:
        """Follow the session that `factory` makes, to its end."""
        self._following.clear()
        self.run_worker(self._follow(factory), name="session", exit_on_error=True)

    async def _follow(self, factory: Callable[[], Session]) -> None:
        try:
            try:
                self.session = await asyncio.to_thread(factory)
            except CockpitError as e:
                self.refusal = e
                self.exit(return_code=int(e.exit_code))
                return
            try:
                await self.session.run(self.feed)
            except CockpitError as e:
                self._code = int(e.exit_code)
                self.feed.fail(str(e))
        finally:
            self._following.set()

    def begun(self, info: GroupInfo) -> None:
        """The session has said what it is: take its theme, unless the user asked for one."""
        if not self._fixed_theme:
            self._use_theme(info.theme or themes.DEFAULT)

    def ended(self) -> None:
        """The session has ended: leave, where that was only waited for."""
        if self._leave_after_stop:
            self._quit()

    # Themes

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our names for style sheets, also under a theme that does not know them."""
        return variables(self.look.theme)

    def action_next_theme(self) -> None:
        """Change to the next theme that can be used."""
        names = list(themes.find_themes())
        at = names.index(self.look.theme.name) if self.look.theme.name in names else -1
        self._fixed_theme = True
        self._use_theme(names[(at + 1) % len(names)])
        self.notify(f"theme {self.look.theme.name}", timeout=2)

    def _load_theme(self, name: str) -> themes.ThemeData:
        try:
            return themes.theme(name)
        except ConfigError as e:
            self._warnings.append(f"{e} Going on with {themes.DEFAULT}.")
            return themes.bundled_default()

    def _use_theme(self, name: str) -> None:
        if name == self.look.theme.name:
            return
        self._warnings.clear()
        data = self._load_theme(name)
        for text in self._warnings:
            self.notify(text, severity="warning", timeout=10, markup=False)
        self._apply(data)

    def _apply(self, data: themes.ThemeData) -> None:
        from cockpit.tui.widgets.panel import Panel

        self.look = Look(data)
        self.register_theme(textual_theme(data))
        if not self.is_running:  # before the first paint nothing has to be invalidated
            self.set_reactive(App.theme, data.name)
            self.stylesheet.set_variables(self.get_css_variables())
            return
        self.theme = data.name
        for screen in self.screen_stack:
            for panel in screen.query(Panel):
                panel.repaint()
            if hasattr(screen, "redraw"):
                screen.redraw()

    # Leaving

    async def action_help(self) -> None:
        """Show all keys."""
        from cockpit.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen())

    async def action_leave(self) -> None:
        """Quit where nothing is lost by it, else ask."""
        if self._nothing_to_lose():
            self._quit()
            return
        await self._ask(
            "leave this group?",
            "It runs by itself on its servers, with or without this screen.",
            [("d", "detach", "detach: leave it running (`attach last` comes back)"), _STOP],
        )

    async def action_interrupt(self) -> None:
        """Ctrl-C: ask as q does; where the question stands already, stop and leave; then leave at once."""
        from cockpit.tui.screens.ask import AskScreen

        if self._nothing_to_lose():
            self._quit()
        elif self.stopping and self._leave_after_stop:
            self._leave_now()
        elif isinstance(self.screen, AskScreen):
            self.screen.dismiss("stop")
        else:
            await self.action_leave()

    def ask_stop(self) -> None:
        """Ask whether to stop the group; the screen stays."""
        if not self._nothing_to_lose():
            self.call_later(
                self._ask,
                "stop this group?",
                "What runs is stopped, what waits is cancelled; what was measured so far is kept.",
                [("y", "stop-stay", "stop it and stay here")],
            )

    def _nothing_to_lose(self) -> bool:
        info = self.feed.info
        return self.session is None or self.feed.ended or (info is not None and not info.live)

    async def _ask(self, title: str, text: str, answers: list[tuple[str, str, str]]) -> None:
        from cockpit.tui.screens.ask import Answer, AskScreen

        self.push_screen(AskScreen(title, text, [Answer(*a) for a in answers]), self._answered)

    def _answered(self, answer: str | None) -> None:
        if answer == "detach":
            self.run_worker(self._leave_running(int(Exit.OK)), name="detach")
        elif answer is not None:
            self._leave_after_stop = self._leave_after_stop or answer == "stop"
            if self.feed.ended:  # it ended while the question stood
                self.ended()
            elif not self.stopping:
                self.stopping = True
                self.run_worker(self._stop(), name="stop")

    async def _stop(self) -> None:
        from cockpit.tui.screens.live import LiveScreen

        assert self.session is not None
        if isinstance(self.screen, LiveScreen):
            self.screen.say_mode()
        try:
            await self.session.stop()
        except CockpitError as e:
            self.stopping = self._leave_after_stop = False
            self.notify(f"cannot stop: {e}", severity="error", timeout=15, markup=False)

    def _leave_now(self) -> None:
        """Close without waiting for a stop: what was wished for is on the servers, the agents go on with it."""
        if self.session is None or self.feed.ended:
            self.exit(return_code=int(Exit.INTERRUPTED))
        else:
            self.run_worker(self._leave_running(int(Exit.INTERRUPTED)), name="detach")

    async def _leave_running(self, code: int) -> None:
        assert self.session is not None
        self.session.detach()
        with contextlib.suppress(TimeoutError):  # the link hangs: nothing is lost, the agent keeps the queue
            await within(_LEAVE_S, self._following.wait())
        self.exit(return_code=code)

    def _quit(self) -> None:
        self.exit(return_code=self.code())

    def code(self) -> int:
        """The exit code of what has happened so far."""
        outcome = self.feed.outcome
        if self.stopping and (outcome is None or outcome.state == "CANCELLED"):
            return int(Exit.INTERRUPTED)
        return outcome.exit_code if outcome is not None else self._code

    # An internal error

    def _fatal_error(self) -> None:
        """Textual would print a traceback with all locals, secrets among them: keep the error for a file instead."""
        self.crash = self.crash or sys.exc_info()[1] or self._exception
        self._close_messages_no_wait()


_STOP = ("s", "stop", "stop: cancel what runs and what waits, then leave")


def open_screen(
    session_factory: Callable[[], Session] | None,
    *,
    demo: Callable[[], Session] | None = None,
    theme: str | None = None,
) -> int:
    """Run the app to its end and return the exit code; see `cockpit.tui.run_app`."""
    app = CockpitApp(session_factory, demo=demo, theme=theme)
    try:
        app.run()
    except Exception as e:  # noqa: BLE001  whatever it was, its locals must not reach the terminal
        app.crash = app.crash or e
    if app.refusal is not None:
        raise app.refusal
    if app.crash is not None:
        from cockpit.core import crash

        group = app.feed.info.group if app.feed.info and app.feed.info.live else None
        sys.stderr.write(crash.message(app.crash, crash.write_report(app.crash), group))
        return int(Exit.RUN_FAILED)
    return app.return_code or int(Exit.OK)
