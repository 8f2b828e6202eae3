"""stdout in every shape: closed, full, read in part, and in encodings that have little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTING = ["profiles", "list"]


def _cockpit(words: list[str], shell: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """`ekvi-cockpit WORDS`, with what a shell does with its output; stderr ends in its exit code."""
    command = f'{{ "$@"; echo "exit $?" >&2; }} {shell}'
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "cockpit.cli", *words],
        capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=60, stdin=subprocess.DEVNULL,
        env={**kept, **env}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [LISTING, ["--help"], ["profiles", "show", "duel-local"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str]) -> None:
    assert _cockpit(words, "| true").stderr == "exit 0\n"


@pytest.mark.parametrize("words", [LISTING, ["--help"]])
def test_a_closed_stdout_takes_everything(words: list[str]) -> None:
    assert _cockpit(words, ">&-").stderr == "exit 0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_an_output_without_room_is_one_sentence() -> None:
    sentence, code = _cockpit(LISTING, ">/dev/full").stderr.splitlines()
    assert sentence.startswith("ekvi-cockpit: the output cannot be written")
    assert code == "exit 2"


def test_what_an_encoding_does_not_have_is_written_plainly(tmp_path: Path) -> None:
    folder = tmp_path / "xdg-config" / "ekvi-cockpit" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("description: \N{BOX DRAWINGS LIGHT HORIZONTAL} \N{HORIZONTAL ELLIPSIS} \xe9\n")
    done = _cockpit(LISTING, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.stderr == "exit 0\n"
    assert "- ... \\xe9" in done.stdout


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}])
def test_words_are_text_in_every_locale(locale: dict[str, str]) -> None:
    words = ["profiles", "show", "duel-local", "--output", "json", "--set", "description='gr\xfcn'"]
    done = _cockpit(words, **locale)
    assert "gr\\u00fcn" in done.stdout


def test_a_word_that_is_no_text_is_one_sentence() -> None:
    done = _cockpit(["run", "--profile", "duel-local", "description=\udcff"])
    assert "is not text in UTF-8" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_help_fits_80_columns() -> None:
    assert max(map(len, _cockpit(["--help"], COLUMNS="80").stdout.splitlines())) < 80
