"""What Hydra, OmegaConf and PyYAML raise on a user's files, as one sentence with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from runners.explain import Document, Keys, list_for_keys
from runners.words import ComposeError, did_you_mean

# What Hydra and OmegaConf raise on a user's YAML, their own errors and others.
RAISED = (HydraException, OmegaConfBaseException, ValueError, TypeError, LookupError, AttributeError, AssertionError)
# Hydra's reasons by what they name, and our sentence for each.
_COMPOSITION: tuple[tuple[str, str, str | None], ...] = (
    (r"specify '([^']+)'", "{0} is not chosen.", "Choose one on the command line: GROUP=NAME."),
    (r"Could not override '([^']+)'", "the defaults list overrides {0!r}, which it does not name.", None),
    (r"Multiple values for (\S+)\.", "the defaults lists choose {0} twice.", "Write `override` before one of them."),
    (r"(\S+) appears more than once", "the defaults lists name {0} twice.", None),
    (r"Duplicate (_self_)", "the defaults list names {0} twice.", None),
    (r"In '([^']+)': \w*(?:Type|Validation)Error", "{0} holds a list or a text where keys should be.", None),
)


@contextmanager
def translated(draft: Document, folders: Sequence[Path], options: Callable[[str], list[str]]) -> Iterator[None]:
    """Turn errors of composing `draft` into ComposeError. `options` lists a group's choices."""
    try:
        yield
    except ComposeError:
        raise
    except yaml.MarkedYAMLError as error:
        raise _broken(error) from None
    except (yaml.YAMLError, UnicodeError):
        raise ComposeError("the file is not YAML in UTF-8.", file=_first_broken(draft, folders)) from None
    except MissingConfigException as error:
        raise _missing(error, draft, folders, options) from None
    except OSError as error:
        raise ComposeError(f"cannot read {error.filename}: {error.strerror}.") from None
    except RecursionError:
        raise ComposeError("the defaults lists go round in a circle.", file=_own(draft)) from None
    except RAISED as error:
        raise _composition(error, draft, folders) from None


def _own(draft: Document) -> Path | None:
    """The file of the profile itself."""
    return next((s.path for s in draft.sources if s.path.stem == draft.name and not s.package), None)


def _broken(error: yaml.MarkedYAMLError) -> ComposeError:
    mark = error.problem_mark or error.context_mark
    what = (error.problem or error.context or "it cannot be read").rstrip(".")
    if mark is None:
        return ComposeError(f"broken YAML: {what}.")
    return ComposeError(f"broken YAML: {what}.", file=Path(mark.name), line=mark.line + 1, column=mark.column + 1)


def _first_broken(draft: Document, folders: Sequence[Path]) -> Path | None:
    own = _own(draft)
    for path in [*([own] if own else []), *(p for folder in folders for p in sorted(folder.rglob("*.yaml")))]:
        try:
            yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (UnicodeError, yaml.YAMLError):
            return path
    return own


def _missing(
    error: MissingConfigException, draft: Document, folders: Sequence[Path], options: Callable[[str], list[str]]
) -> ComposeError:
    """A defaults list names a file that is not there."""
    group, _, choice = str(error.missing_cfg_file or "").rpartition("/")
    hint = did_you_mean(choice, options(group))
    message = f"there is no {group or 'profile'} {choice!r}."
    for word in reversed(draft.words):
        if word.is_group and word.key == group and word.value == choice:
            return word.error(message, hint)
    file, line = _said(folders, draft, choice)
    return ComposeError(message, hint=hint, file=file, line=line)


def _composition(error: Exception, draft: Document, folders: Sequence[Path]) -> ComposeError:
    """One sentence for what Hydra found wrong with the files or with a word."""
    text = " ".join(str(part) for part in (error, error.__cause__ or "") if part)
    value = re.search(r"full_key: (\S+)", text)
    if value:
        return _unresolved(tuple(value[1].split(".")), text, draft)
    for word in draft.words:
        if word.kind == "delete" and word.is_group and f"Could not delete '{word.choice}" in text:
            return word.error(f"there is nothing to delete: this profile's defaults list has no {word.choice}.")
    if "Cannot merge" in text:
        groups = {entry.name for folder in folders for entry in folder.iterdir() if entry.is_dir()}
        for path in dict.fromkeys(source.path for source in draft.sources):
            listed = list_for_keys(path, groups)
            if listed:
                return ComposeError(f"{listed[0]} must be keys, not a list.", file=path, line=listed[1])
    for pattern, message, hint in _COMPOSITION:
        found = re.search(pattern, text)
        if found:
            file, line = _said(folders, draft, found[1])
            return ComposeError(message.format(found[1]), hint=hint, file=file, line=line)
    return ComposeError(
        "the files of this profile do not fit together.", hint="See its defaults list.", file=_own(draft)
    )


def _unresolved(keys: Keys, text: str, draft: Document) -> ComposeError:
    """A value that OmegaConf cannot resolve."""
    key = ".".join(keys)
    if "Missing mandatory value" in text:
        return draft.error(f"{key} has no value yet.", [keys], "Say one in place of ???.")
    missing = re.search(r"Interpolation key '([^']+)'|Environment variable '([^']+)'|resolver '?([\w.]+)'?", text)
    if missing is None:
        return draft.error(f"{key} holds an interpolation that cannot be resolved.", [keys])
    what = ("key", "environment variable", "resolver")[(missing.lastindex or 1) - 1]
    return draft.error(f"{key} refers to the {what} {missing[missing.lastindex or 1]!r}, which is not there.", [keys])


def _said(folders: Sequence[Path], draft: Document, name: str) -> tuple[Path | None, int | None]:
    """File and line that say `name`: in the profile itself, else in a file of the folders, else nowhere known."""
    leaf = re.compile(rf"(?<![\w-]){re.escape(re.split(r'[/.@]', name)[-1])}(?![\w-])")
    own = _own(draft)
    for path in [*([own] if own else []), *(p for f in folders for p in sorted(f.glob("*/*.yaml")))]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError):
            continue
        for at, line in enumerate(lines, 1):
            if leaf.search(line.split("#", 1)[0]):
                return path, at
    return own, None
