"""What the screen's tests share: the screen as text, and waiting for what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from cockpit.engine.observer import Session
from cockpit.tui.app import CockpitApp

PATIENCE_S = 15.0


def shown(app: CockpitApp) -> str:
    """The characters on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def until(pilot: Pilot[None], wanted: str | Callable[[], bool]) -> None:
    """Wait until the screen shows a text, or something holds."""
    app = pilot.app
    assert isinstance(app, CockpitApp)
    holds = wanted if callable(wanted) else lambda: wanted in shown(app)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                if app._exception is not None:
                    raise app._exception
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(f"never came: {wanted!r}\n{shown(app)}") from None


@asynccontextmanager
async def screen(
    session: Session | None = None,
    *,
    demo: Session | None = None,
    theme: str | None = None,
    size: tuple[int, int] = (120, 40),
) -> AsyncIterator[tuple[CockpitApp, Pilot[None]]]:
    """The app on a session, without a terminal; whatever stands in it is left at the end."""
    app = CockpitApp((lambda: session) if session else None, demo=(lambda: demo) if demo else None, theme=theme)
    async with asyncio.timeout(60), app.run_test(size=size, notifications=True) as pilot:
        yield app, pilot
        app.exit(return_code=app.return_code or 0)
