"""Errors of a composed document as sentences that name the key, the value, and the file and line or the word.

pydantic says what does not fit; this module finds where it was said: in the last word that sets the key, else in the
last of the composed files that does, by the marks of its YAML nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from runners.words import ComposeError, Word, did_you_mean, near_key, unknown_key

Keys = tuple[str, ...]
_HIDDEN = {"env", "secrets"}  # values below these are never shown


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a composed document; its content stands under `package` there."""

    path: Path
    package: Keys

    def line(self, keys: Keys) -> int | None:
        """The line (from 1) at which this file says `keys`, or None where it does not."""
        if keys[: len(self.package)] != self.package:
            return None
        node, line = _tree(self.path), 1
        for key in keys[len(self.package) :]:
            found = _child(node, key)
            if found is None:
                return None
            line, node = found
        return line


@dataclass(frozen=True, slots=True)
class Document:
    """A composed document as plain data, with what it was made of.

    `files` finds the sources in the order of their merging; it is asked only where something is to be explained.
    """

    name: str | None
    data: dict[str, Any]
    words: tuple[Word, ...]
    files: Callable[[], tuple[Source, ...]] = field(default=tuple, compare=False)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files, the last merged last."""
        return self.files()

    def word_for(self, keys: Keys) -> Word | None:
        """The last word that sets `keys`, or a value with `keys` in it."""
        for word in reversed(self.words):
            if word.is_group or word.kind == "delete" or word.path != keys[: len(word.path)]:
                continue
            if _holds(word.value, keys[len(word.path) :]):
                return word
        return None

    def _word_below(self, keys: Keys) -> Word | None:
        """The last word that made `keys` a mapping by setting something below it."""
        below = (w for w in reversed(self.words) if not w.is_group and w.kind != "delete")
        return next((w for w in below if keys and len(w.path) > len(keys) and w.path[: len(keys)] == keys), None)

    def place(self, *wanted: Keys) -> tuple[Path, int] | None:
        """File and line that say the first of the wanted keys that one says, the last file before the others.

        Where none says any, of the longest part of the first, else of the file of its group.
        """
        sources = self.sources
        for keys in wanted:
            for source in reversed(sources):
                line = source.line(keys)
                if line is not None:
                    return source.path, line
        keys = wanted[0]
        for length in range(len(keys) - 1, 0, -1):
            for source in reversed(sources):
                line = source.line(keys[:length]) if len(source.package) < length else None
                if line is not None:
                    return source.path, line
        owners = [s for s in sources if s.package == keys[: len(s.package)]]
        return (owners[-1].path, 1) if owners else None

    def error(self, message: str, keys: Iterable[Keys], hint: str | None = None) -> ComposeError:
        """`message` with the place of the first of `keys` that a word sets, else that a file says."""
        wanted = list(keys)
        for key in wanted:
            word = self.word_for(key) or self._word_below(key)
            if word is not None:
                return word.error(message, hint)
        file, line = self.place(*wanted) or (None, None)
        return ComposeError(message, hint=hint, file=file, line=line)


def _holds(value: Any, keys: Keys) -> bool:
    for key in keys:
        if isinstance(value, Mapping):
            named = {str(k): v for k, v in value.items()}
            if key not in named:
                return False
            value = named[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return False
    return True


@lru_cache(maxsize=64)
def _parsed(path: Path, mtime_ns: int, size: int) -> yaml.Node | None:
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeError, yaml.YAMLError):
        return None  # Hydra has said what is wrong with it


def _tree(path: Path) -> yaml.Node | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parsed(path, stat.st_mtime_ns, stat.st_size)


def _child(node: yaml.Node | None, key: str) -> tuple[int, yaml.Node] | None:
    """Line (from 1) and node of `key` below a mapping, also by way of a merge key, or of an index in a sequence."""
    if isinstance(node, yaml.SequenceNode):
        items = node.value
        return (items[int(key)].start_mark.line + 1, items[int(key)]) if _index(key, len(items)) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for name, value in node.value:
        if name.value == key:
            return name.start_mark.line + 1, value
        if name.value == "<<":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return next((found for other in merged if (found := _child(other, key))), None)


def _index(key: str, length: int) -> bool:
    return key.isdigit() and int(key) < length


def keys_below(source: Source, keys: Keys) -> list[str]:
    """The keys that a file says directly below `keys`."""
    node = _tree(source.path)
    inside = keys[len(source.package) :] if keys[: len(source.package)] == source.package else None
    if inside is None:
        return [source.package[len(keys)]] if source.package[: len(keys)] == keys else []
    for key in inside:
        found = _child(node, key)
        if found is None:
            return []
        node = found[1]
    return [str(k.value) for k, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def shape_problem(path: Path) -> ComposeError | None:
    """What is wrong with the shape of a profile's file: keys at its top, and a list under `defaults`."""
    root = _tree(path)
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode):
        return ComposeError("a list or a text stands where keys should be.", file=path, line=root.start_mark.line + 1)
    found = _child(root, "defaults")
    if found and not isinstance(found[1], yaml.SequenceNode):
        return ComposeError(
            "defaults must be a list.", hint="Write a line for each: `- model: tiny`.", file=path, line=found[0]
        )
    return None


def list_for_keys(path: Path, names: Iterable[str]) -> tuple[str, int] | None:
    """The first of `names` under which a file has a list where keys should be, and its line."""
    for name in sorted(names):
        found = _child(_tree(path), name)
        if found and isinstance(found[1], yaml.SequenceNode):
            return name, found[0]
    return None


# -- pydantic's errors --------------------------------------------------------------------------------------------


def explain(
    error: ValidationError, document: Document, schema: type[BaseModel], under: Keys = ()
) -> list[ComposeError]:
    """All that does not fit, a sentence each. `under` is where the validated part stands in the document."""
    out: list[ComposeError] = []
    for found in error.errors(include_url=False):
        keys = _keys([*under, *found["loc"]], document.data)
        message, hint = _sentence(found, keys, schema, document)
        wanted = [(*keys, "name"), (*keys, "kind"), keys] if found["type"].startswith("union_tag") else [keys]
        if found["type"] == "refused":
            wanted = [(*keys, *key.split(".")) for key in found["ctx"]["keys"]] or [keys]
        out.append(document.error(message, wanted, hint))
    return out


def _keys(loc: Sequence[Any], data: Any) -> Keys:
    """A pydantic location as keys of the document: without the tags of unions and the marks of dictionary keys."""
    keys: list[str] = []
    for at, part in enumerate(loc):
        if part == "[key]":
            continue
        if isinstance(data, Mapping):
            if part not in data and part in (data.get("name"), data.get("kind")) and at < len(loc) - 1:
                continue
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            data = None
        keys.append(str(part))
    return tuple(keys)


_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def _sentence(
    found: Mapping[str, Any], keys: Keys, schema: type[BaseModel], document: Document
) -> tuple[str, str | None]:
    """What is wrong, and a hint or None."""
    kind, ctx, key = str(found["type"]), found.get("ctx", {}), ".".join(keys)
    shown = "" if _HIDDEN & set(keys) else f", not {show(found['input'])}"
    if kind == "refused":
        message = str(ctx["message"]).rstrip(".") + "."
        name = next((k for k in reversed(keys) if not k.isdigit()), "")
        return (message if name in message else f"{key}: {message}"), None
    if kind == "extra_forbidden":
        return _unknown(keys, schema, document)
    if kind == "missing":
        return f"{key} is missing.", f"Say {key}."
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{key} must be {words} {ctx[bound]:g}{shown}.", None
    if kind == "literal_error":
        return _choice(key, re.findall(r"'([^']*)'", ctx["expected"]), found["input"])
    tag = str(ctx.get("discriminator", "'name'")).strip("'")
    if kind == "union_tag_invalid":
        return _choice(f"{key}.{tag}", re.findall(r"'([^']*)'", ctx["expected_tags"]), ctx["tag"])
    if kind == "union_tag_not_found":
        return f"{key}.{tag} is missing.", f"Choose one: {key}=NAME, or say {key}.{tag}."
    if kind == "too_short":
        return f"{key} needs at least {ctx['min_length']} of its values.", None
    wanted = next((text for start, text in _WANTED.items() if kind.startswith(start)), None)
    if wanted is None:
        return f"{key} has a value that does not fit{shown.replace(', not', ':')}.", None
    hint = "Quote it where a text is meant." if wanted == "a text" and keys else None
    return f"{key or 'the document'} must be {wanted}{shown}.", hint


def _unknown(keys: Keys, schema: type[BaseModel], document: Document) -> tuple[str, str | None]:
    if "." in keys[-1]:
        return f"unknown key {keys[-1]!r}: in a file a key with dots is one name.", "Nest it: a line a level."
    hint = near_key(keys, len(keys) - 1, schema)
    if keys[0] == "runner" and (hint or "").endswith(f"{'.'.join(keys)!r}?"):
        name = show(_value(document.data, ("runner", "name")))
        return f"{'.'.join(keys)} is no key of the runner {name}.", "Another runner has it: choose it by runner=NAME."
    return unknown_key(keys, ["*"], schema), hint


def _value(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _choice(key: str, known: Sequence[str], value: Any) -> tuple[str, str | None]:
    message = f"{key} must be one of {', '.join(known)}, not {show(value)}."
    close = did_you_mean(str(value), known) or ""
    return message, close if close.startswith("Did") else None


def show(value: Any) -> str:
    """A value as it may stand in a sentence: as JSON, and not too long."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
