"""Coming in and going out: the welcome, the question on q, Ctrl-C, exit codes, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from cockpit.core.errors import ConfigError, ServerError, UsageError
from cockpit.engine.observer import Observer, Outcome, Session
from cockpit.tui import app as app_module
from cockpit.tui import run_app
from cockpit.tui.app import CockpitApp
from cockpit.tui.screens.ask import AskScreen
from cockpit.tui.screens.live import LiveScreen
from cockpit.tui.screens.welcome import WelcomeScreen
from tests.tui.scripted import GROUP, Script
from tests.tui.support import screen, shown, until


def _gone(app: CockpitApp) -> Callable[[], bool]:
    return lambda: app._exit


async def _asked(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, AskScreen))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 12)])
async def test_without_a_session_it_welcomes_and_says_how_to_begin(size: tuple[int, int]) -> None:
    async with screen(demo=Script(live=False), size=size) as (app, pilot):
        assert isinstance(app.screen, WelcomeScreen)
        await until(pilot, "watch the demo")
        if size[0] >= 80:
            assert "ekvi-cockpit run --profile duel-local" in shown(app)
            assert "ekvi-cockpit init" in shown(app)
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == 0


@pytest.mark.parametrize("key", ["d", "enter"])
async def test_the_welcome_plays_the_demo(key: str) -> None:
    demo = Script(live=False)
    async with screen(demo=demo) as (app, pilot):
        await until(pilot, "watch the demo")
        await pilot.press(key)
        await until(pilot, "replay")
        assert demo.began.is_set()
        assert isinstance(app.screen, LiveScreen)


async def test_without_a_demo_none_is_offered() -> None:
    async with screen() as (app, pilot):
        await until(pilot, "ekvi-cockpit run")
        assert "demo" not in shown(app)
        await pilot.press("d")
        assert isinstance(app.screen, WelcomeScreen)


async def test_q_detaches_from_a_live_group_with_exit_0() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("q")
        await _asked(pilot)
        assert "╭─ leave this group?" in shown(app)
        await pilot.press("d")
        await until(pilot, _gone(app))
        assert script.detached
        assert script.stops == []
        assert app.return_code == 0


async def test_q_stops_a_live_group_with_exit_130() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("q")
        await _asked(pilot)
        await pilot.press("s")
        await until(pilot, _gone(app))
        assert script.stops == [None]
        assert app.return_code == 130


async def test_escape_stays() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("q")
        await _asked(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))
        assert not app._exit
        assert not script.detached
        assert script.stops == []


async def test_ctrl_c_asks_and_once_more_stops_and_leaves_with_130() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("ctrl+c")
        await _asked(pilot)
        assert script.stops == []
        await pilot.press("ctrl+c")
        await until(pilot, _gone(app))
        assert script.stops == [None]
        assert app.return_code == 130


class _Slow(Script):
    """A group that takes its time to stop."""

    async def stop(self, run: str | None = None) -> None:
        self.stops.append(run)


async def test_a_third_ctrl_c_does_not_wait_for_the_stop() -> None:
    script = _Slow()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("ctrl+c")
        await _asked(pilot)
        await pilot.press("ctrl+c")
        await until(pilot, "stopping…")
        assert not app._exit
        await pilot.press("ctrl+c")
        await until(pilot, _gone(app))
        assert script.detached
        assert app.return_code == 130


async def test_x_stops_and_stays_and_the_exit_code_is_130() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("x")
        await _asked(pilot)
        await pilot.press("y")
        await until(pilot, "CANCELLED")
        assert script.stops == [None]
        assert not app._exit
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == 130


async def test_a_stop_that_came_too_late_leaves_the_outcomes_code() -> None:
    script = _Slow()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("x")
        await _asked(pilot)
        script.finish(Outcome(GROUP, "SUCCEEDED", 0))
        await pilot.press("y")
        await until(pilot, "SUCCEEDED")
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == 0


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("FAILED", 3)])
async def test_after_the_end_q_quits_with_the_outcomes_code(state: str, code: int) -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        script.finish(Outcome(GROUP, state, code))
        await until(pilot, state)
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == code


async def test_a_replay_quits_without_a_question() -> None:
    async with screen(Script(live=False)) as (app, pilot):
        await until(pilot, "replay")
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == 0


async def test_stop_that_cannot_reach_the_server_says_so_and_stays() -> None:
    class Unreachable(Script):
        async def stop(self, run: str | None = None) -> None:
            raise ServerError("left does not answer.")

    async with screen(Unreachable()) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("q")
        await _asked(pilot)
        await pilot.press("s")
        await until(pilot, "left does not answer.")
        assert not app._exit


async def test_a_session_that_breaks_off_says_why_and_its_code_is_kept() -> None:
    class Cut(Script):
        async def play(self) -> Outcome:
            raise ServerError("left: the link was cut.")

    async with screen(Cut()) as (app, pilot):
        await until(pilot, "left: the link was cut.")
        await until(pilot, "BROKEN OFF")
        await pilot.press("q")
        await until(pilot, _gone(app))
        assert app.return_code == 3


async def test_a_factory_that_refuses_ends_the_app_with_its_error() -> None:
    def refuse() -> Session:
        raise ConfigError("there is no profile 'dule'.", hint="Did you mean 'duel-local'?")

    app = CockpitApp(refuse)
    async with asyncio.timeout(30), app.run_test() as pilot:
        await until(pilot, _gone(app))
    assert app.refusal is not None
    assert app.return_code == 2


async def test_a_factory_does_not_hold_up_the_first_paint() -> None:
    import threading

    gate = threading.Event()
    script = Script()

    def make() -> Session:
        assert gate.wait(30)
        return script

    app = CockpitApp(make)
    async with asyncio.timeout(30), app.run_test() as pilot:
        try:
            await until(pilot, "preparing…")
        finally:
            gate.set()
        await until(pilot, "duel-local")
        app.exit()


async def test_a_broken_theme_is_named_and_nord_taken() -> None:
    from cockpit.report.themes import user_folder

    user_folder().mkdir(parents=True)
    (user_folder() / "mine.yaml").write_text("colors:\n  accent: red\n")
    async with screen(Script(), theme="mine") as (app, pilot):
        await until(pilot, "must be written")
        assert app.look.theme.name == "nord"


async def test_help_lists_every_key_and_closes() -> None:
    from cockpit.tui.keys import KEYS

    async with screen(Script(), size=(120, 40)) as (app, pilot):
        await until(pilot, "duel-local")
        await pilot.press("question_mark")
        await until(pilot, "This list")
        text = shown(app)
        assert all(key.help[:24] in text for key in KEYS)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, LiveScreen))


async def test_a_click_on_a_key_does_what_the_key_does() -> None:
    async with screen(Script()) as (_, pilot):
        await until(pilot, "q quit")
        await pilot.click("#keys", offset=(2, 0))
        await _asked(pilot)


def test_without_a_terminal_it_says_what_to_use_instead() -> None:
    with pytest.raises(UsageError, match=r"needs a terminal.*ekvi-cockpit run") as caught:
        run_app(None)
    assert caught.value.exit_code == 2


def test_a_dumb_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(UsageError, match="TERM is `dumb`"):
        run_app(None)


def test_an_internal_error_is_a_short_message_without_locals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")

    class Broken(Script):
        async def run(self, observer: Observer) -> Outcome:
            token_in_a_local = "hf_0123456789abcdef"
            observer.begin(self.info)
            raise ZeroDivisionError(f"with {token_in_a_local}")

    real = CockpitApp.run
    monkeypatch.setattr(CockpitApp, "run", lambda self: real(self, headless=True))
    assert app_module.open_screen(Broken) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert "attach" in err
    assert "hf_0123" not in err
    assert "Traceback" not in err
    text = Path(err.rstrip().rsplit(" ", 1)[1]).read_text()
    assert "Traceback" in text
    assert "hf_0123" not in text
