"""Themes as plain data, for every face of the product: YAML in, names of colours out. Knows no terminal toolkit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.core.errors import ConfigError, did_you_mean
from cockpit.core.resources import data_dir

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

DEFAULT = "nord"
SIDES = ("side.a", "side.b", "side.c", "side.d")
# What a theme must colour: a name says what a thing means, never what it looks like.
NAMES = (
    *("background", "surface", "panel", "foreground", "muted", "primary", "secondary", "accent"),
    *("ok", "warn", "error", *SIDES, "run.failed", "run.running", "run.done", "gpu.hot", "gpu.warm", "gpu.cool"),
)
_KEYS = ("name", "dark", "colors")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True, slots=True)
class ThemeData:
    """A theme: each of NAMES as `#rrggbb`. `path` is None for none but a theme made in code."""

    name: str
    colors: Mapping[str, str]
    dark: bool = True
    path: Path | None = None

    def __getitem__(self, name: str) -> str:
        """The colour of a semantic name; KeyError where there is no such name."""
        return self.colors[name]


def user_folder() -> Path:
    """Where a user's own themes are looked for, before the bundled ones."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "ekvi-cockpit" / "themes"


def find_themes() -> dict[str, Path]:
    """All themes by name, sorted; a user's file hides a bundled one of the same name."""
    found: dict[str, Path] = {}
    for folder in (data_dir("themes"), user_folder()):
        found.update({p.stem: p for p in _yaml_files(folder)})
    return dict(sorted(found.items()))


def theme(name: str) -> ThemeData:
    """The theme called `name`. Raises ConfigError where there is none or its file is broken."""
    known = find_themes()
    if name not in known:
        raise ConfigError(f"there is no theme {name!r}.", hint=did_you_mean(name, known))
    return load_theme(known[name])


def bundled_default() -> ThemeData:
    """The theme to go on with where the wanted one is broken, whatever stands in the user's folder."""
    return load_theme(data_dir("themes") / f"{DEFAULT}.yaml")


def load_theme(path: Path) -> ThemeData:
    """The theme in a file. Raises ConfigError naming file, line and what to write there."""
    root = _document(path)
    parts = {key: (node, line) for key, node, line in _items(root, path)}
    for key, (_, line) in parts.items():
        if key not in _KEYS:
            raise ConfigError(f"a theme has no key {key!r}.", hint=did_you_mean(key, _KEYS), file=path, line=line)
    if "colors" not in parts:
        raise ConfigError("a theme needs `colors:` with a colour for each name.", file=path, line=1)
    return ThemeData(
        name=path.stem,
        colors=_colours(*parts["colors"], path),
        dark=_dark(parts["dark"][0], path) if "dark" in parts else True,
        path=path,
    )


def _yaml_files(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    except OSError:
        return []  # no folder of one's own is the usual case; an unreadable one must not keep the screen away


def _document(path: Path) -> MappingNode:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=loader)
    except OSError as e:
        raise ConfigError(f"cannot read this theme ({e.strerror}).", file=path) from e
    except UnicodeDecodeError as e:
        raise ConfigError("a theme must be UTF-8 text.", file=path) from e
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark
        where = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ConfigError(f"broken YAML: {e.problem}.", file=path, line=where[0], column=where[1]) from e
    except yaml.YAMLError as e:
        raise ConfigError(f"broken YAML: {e}.", file=path) from e
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("a theme is a mapping with `name` and `colors`.", file=path, line=1)
    return node


def _items(node: MappingNode, path: Path) -> Iterator[tuple[str, Node, int]]:
    """Key, value and line (from 1) of a mapping; a key that stands twice is an error."""
    seen: set[str] = set()
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise ConfigError(f"{name!r} stands here twice.", file=path, line=line)
        seen.add(name)
        yield name, value, line


def _dark(node: Node, path: Path) -> bool:
    if node.value not in ("true", "false"):
        raise ConfigError("`dark` is true or false.", file=path, line=node.start_mark.line + 1)
    return bool(node.value == "true")


def _colours(node: Node, at: int, path: Path) -> dict[str, str]:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("`colors` is a mapping of names to colours.", file=path, line=at)
    out: dict[str, str] = {}
    for name, value, line in _items(node, path):
        if name not in NAMES:
            raise ConfigError(f"no colour is called {name!r}.", hint=did_you_mean(name, NAMES), file=path, line=line)
        if not isinstance(value.value, str) or not _COLOUR.fullmatch(value.value):
            raise ConfigError(f'the colour of {name!r} must be written "#rrggbb".', file=path, line=line)
        out[name] = value.value.lower()
    missing = [name for name in NAMES if name not in out]
    if missing:
        raise ConfigError(f"no colour for {', '.join(map(repr, missing))}.", file=path, line=at)
    return out
