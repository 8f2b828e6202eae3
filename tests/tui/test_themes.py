"""Themes: complete, readable, and a broken one says where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cockpit.core.errors import ConfigError
from cockpit.report.themes import (
    NAMES,
    SIDES,
    ThemeData,
    bundled_default,
    find_themes,
    load_theme,
    theme,
    user_folder,
)
from cockpit.tui.theming import Look, blend


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(params=["nord", "rainbow"])
def bundled(request: pytest.FixtureRequest) -> ThemeData:
    return theme(request.param)


def test_a_bundled_theme_colours_every_name(bundled: ThemeData) -> None:
    assert set(bundled.colors) == set(NAMES)


def test_text_and_sides_stand_out_from_the_background(bundled: ThemeData) -> None:
    for name in (*SIDES, "foreground", "muted", "primary", "ok", "warn", "error", "run.failed"):
        assert _contrast(bundled[name], bundled["background"]) >= 3.5, name


def test_the_first_two_sides_are_told_apart(bundled: ThemeData) -> None:
    a, b = (bundled[s] for s in SIDES[:2])
    assert sum(abs(int(a[i : i + 2], 16) - int(b[i : i + 2], 16)) for i in (1, 3, 5)) > 150


def _write(name: str, text: str) -> Path:
    path = user_folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _text(**changes: str) -> str:
    colours = dict.fromkeys(NAMES, "#101010") | changes
    return "colors:\n" + "".join(f'  {n}: "{c}"\n' for n, c in colours.items())


def test_a_users_theme_comes_before_a_bundled_one() -> None:
    _write("nord.yaml", _text(background="#000001"))
    assert theme("nord")["background"] == "#000001"
    assert bundled_default()["background"] != "#000001"
    assert set(find_themes()) == {"nord", "rainbow"}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (_text(accent="red"), 9, "'accent' must be written"),
        (_text(acent="#101010"), 23, "Did you mean 'accent'"),
        ("name: x\ncolors:\n  accent: ['#101010\n", 4, "broken YAML"),
        ("name: x\ncolour: {}\n", 2, "'colour'"),
        ("name: x\n", 1, "needs `colors:`"),
        ("- a\n- b\n", 1, "a mapping"),
        ("", 1, "a mapping"),
        ("dark: maybe\n" + _text(), 1, "true or false"),
        ("name: x\ncolors:\n  accent: '#101010'\n", 2, "no colour for 'background'"),
        ("colors: 3\n", 1, "`colors` is a mapping"),
        (_text() + '  accent: "#222222"\n', 23, "twice"),
    ],
)
def test_a_broken_theme_names_file_line_and_remedy(text: str, line: int, words: str) -> None:
    path = _write("mine.yaml", text)
    with pytest.raises(ConfigError) as caught:
        theme("mine")
    assert words in str(caught.value)
    assert caught.value.file == path
    assert caught.value.line == line
    assert str(path) in str(caught.value)


def test_a_theme_that_is_not_text_is_refused() -> None:
    path = _write("mine.yaml", "")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_theme(path)


def test_an_unknown_theme_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rainbow'"):
        theme("rainbw")


def test_a_folder_that_cannot_be_read_hides_no_bundled_theme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(blocked))
    assert "nord" in find_themes()


def test_a_blend_lies_between() -> None:
    assert blend("#000000", "#ffffff", 0.5) == "#808080"
    assert blend("#123456", "#ffffff", 0.0) == "#123456"


def test_a_fifth_server_gets_the_first_colour_again() -> None:
    look = Look(bundled_default())
    assert look.side(4) == look.side(0)
    assert look.side(1) != look.side(0)
