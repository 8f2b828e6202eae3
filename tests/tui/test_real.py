"""The program itself on a real pseudo-terminal: it starts, it leaves in order, it refuses where there is none."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tui.terminal import Terminal

_ALTERNATE, _BACK, _CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


def test_it_welcomes_and_q_leaves_with_0_and_the_terminal_in_order() -> None:
    with Terminal("cockpit.cli") as terminal:
        terminal.until("watch the demo")
        terminal.keys("q")
        assert terminal.end() == 0
        assert _ALTERNATE in terminal.output
        assert terminal.output.rindex(_BACK) > terminal.output.rindex(_ALTERNATE)
        assert _CURSOR in terminal.output


def test_a_live_session_is_left_by_ctrl_c_twice_with_130() -> None:
    with Terminal("tests.tui.play", ["rate=5"]) as terminal:
        terminal.until("duel-local")
        terminal.keys("\x03")
        terminal.until("leave this group?")
        terminal.keys("\x03")
        assert terminal.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_detaches_and_puts_the_terminal_back(number: signal.Signals) -> None:
    with Terminal("tests.tui.play", ["rate=5"]) as terminal:
        terminal.until("duel-local")
        terminal.process.send_signal(number)
        assert terminal.end() == 130
        assert terminal.output.rindex(_BACK) > terminal.output.rindex(_ALTERNATE)


def test_sigint_from_outside_asks_as_ctrl_c_does() -> None:
    with Terminal("tests.tui.play", ["rate=5"]) as terminal:
        terminal.until("duel-local")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("leave this group?")
        terminal.keys("d")
        assert terminal.end() == 0


def test_an_internal_error_leaves_a_short_message_on_the_terminal(tmp_path: Path) -> None:
    with Terminal("tests.tui.play", ["broken"], env={"HF_TOKEN": "hf_0123456789abcdef"}) as terminal:
        assert terminal.end() == 1
        after = terminal.output[terminal.output.rindex(_BACK) :].decode()
        assert "the screen broke off (RuntimeError" in after
        assert "Traceback" not in after
        assert b"hf_0123456789abcdef" not in terminal.output
    reports = list((tmp_path / "xdg-state" / "ekvi-cockpit").iterdir())
    assert len(reports) == 1
    assert "hf_0123456789abcdef" not in reports[0].read_text()


def test_without_a_terminal_it_exits_2_with_a_hint() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cockpit.cli"],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "needs a terminal" in done.stderr
    assert "ekvi-cockpit run" in done.stderr
    assert "--help" in done.stderr


def test_opening_the_screen_imports_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "hydra", "omegaconf", "pydantic", "asyncssh", "torch", "plotext")
    code = (
        "import sys, cockpit.tui.app, cockpit.tui.screens.live, cockpit.tui.screens.welcome;"
        f"sys.exit(', '.join(m for m in {heavy!r} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")
