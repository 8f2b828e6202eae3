"""The README's picture: the live screen in the middle of the demo, as a PNG. `python -m tests.picture`.

Needs Debian's packages chromium and fonts-dejavu.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import tempfile
from pathlib import Path

from cockpit.cli.commands.follow import session_of
from cockpit.engine.observer import Session
from cockpit.tui.app import CockpitApp

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "live.png"
_SIZE = (150, 42)
_SHARE = 0.72  # of the demo's iterations that have been played when the picture is taken


def _demo() -> Session:
    return session_of(argparse.Namespace(id="demo", speed=200.0, runs_dir=None))[1]


async def svg(size: tuple[int, int] = _SIZE, share: float = _SHARE) -> str:
    """The screen of `size` cells when `share` of the demo was played."""
    app = CockpitApp(_demo)
    async with asyncio.timeout(120), app.run_test(size=size) as pilot:
        while (info := app.feed.info) is None or sum(len(r.series) for r in info.runs) < share * 720:
            await pilot.pause(0.02)
        assert app.session is not None
        app.session.pace(0.0)
        await pilot.pause(1.2)
        return app.export_screenshot(title="ekvi-cockpit")


def png(text: str, target: Path) -> None:
    """Render an SVG with Chromium: other renderers have no fallback font for braille."""
    width, height = (round(float(x)) for x in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    local = re.sub(r"@font-face \{.*?\}", "", text, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "screen.html"
        page.write_text(f"<style>body{{margin:0}}svg{{width:{width}px}}</style>{local}")
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={target}",
             str(page)],
            check=True, timeout=120, capture_output=True,
        )  # fmt: skip


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(prog="python -m tests.picture", description=__doc__)
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args()
    args.target.parent.mkdir(exist_ok=True, parents=True)
    png(asyncio.run(svg()), args.target)
    print(f"{args.target}: {args.target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
