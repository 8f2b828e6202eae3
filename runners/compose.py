"""Composition: Hydra's compose API over folders of YAML, then the schema.

The user's folder is searched before the shipped one, by a SearchPathPlugin (Hydra's own `hydra.searchpath` cannot
find a primary configuration there). Used by the cockpit, and by `python -m runners stage=train training=rocm`.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from runners.explain import Document, Keys, Source, explain, keys_below, list_for_keys, shape_problem, show
from runners.schema import RunConfig
from runners.words import MARK, ComposeError, Origin, Word, check_key, did_you_mean, parse

__all__ = ["ComposeError", "Composer", "Document", "Origin", "Word", "compose_run", "shipped_folder", "user_folder"]

APP = "ekvi-cockpit"
DEFAULT_GROUPS = {"model": "tiny", "data": "pydoc", "training": "cpu", "runner": "megatron"}
# What Hydra and OmegaConf raise on a user's YAML besides their own errors.
_RAISED = (HydraException, OmegaConfBaseException, ValueError, TypeError, LookupError, AttributeError, AssertionError)
_lock = threading.RLock()  # Hydra's state is one a process
_folders: tuple[Path, ...] = ()  # what the plugin puts before the shipped folder while a Composer is open
M = TypeVar("M", bound=BaseModel)


class _Folders(SearchPathPlugin):  # type: ignore[misc]  # hydra is not typed here
    """Puts the folders of the open Composer before the shipped one; does nothing outside of it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in _folders:
            search_path.prepend(provider=APP, path=f"file://{folder}", anchor="main")


def user_folder() -> Path:
    """The user's profiles on a server: `$XDG_CONFIG_HOME/ekvi-cockpit/profiles`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / APP / "profiles"


def shipped_folder() -> Path:
    """The profiles beside this package: in a checkout, or in a wheel, where the source stands one folder deeper."""
    here = Path(__file__).resolve().parent.parent
    return next((d for d in (here / "profiles", here.parent / "profiles") if d.is_dir()), here / "profiles")


class Composer:
    """Composes documents from YAML in `folders` (the first that has a file wins). A context manager.

    Every method raises ComposeError, never Hydra's, OmegaConf's, PyYAML's or pydantic's errors. Within a process one
    Composer is open at a time; another thread waits.
    """

    def __init__(self, folders: Sequence[Path], schema: type[BaseModel]) -> None:
        self.folders = tuple(folders)
        self.schema = schema
        self._composed: dict[tuple[str | None, tuple[str, ...]], DictConfig] = {}
        self._listed: dict[tuple[str | None, tuple[str, ...]], Any] = {}

    def __enter__(self) -> Self:
        global _folders
        _lock.acquire()
        try:
            for folder in self.folders:
                _readable(folder)
            _folders = tuple(reversed(self.folders[:-1]))
            Plugins.instance().register(_Folders)
            GlobalHydra.instance().clear()
            initialize_config_dir(str(self.folders[-1]), job_name=APP, version_base="1.3")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _folders
        GlobalHydra.instance().clear()
        _folders = ()
        _lock.release()

    # -- words and groups

    @cached_property
    def groups(self) -> frozenset[str]:
        """The config groups of all folders."""
        return frozenset(e.name for f in self.folders for e in f.iterdir() if e.is_dir() and e.name[0] not in "._")

    def options(self, group: str) -> list[str]:
        """The choices of a group, sorted."""
        return sorted(self._loader.get_group_options(group, results_filter=ObjectType.CONFIG))

    def parse(self, words: Sequence[str], origins: Sequence[Origin] | None = None) -> tuple[Word, ...]:
        """The words, read and checked against the schema's keys and the groups' choices."""
        out = []
        for at, text in enumerate(words):
            word = parse(text, self.is_group, origins[at] if origins else None)
            word.override.config_loader = self._loader  # glob() asks it for a group's choices
            if not word.is_group and word.key in self.groups and word.key not in self.schema.model_fields:
                raise word.error(f"say what {word.key} it is for.", f"Write {word.key}@PLACE=NAME.")
            check_key(word, self.schema)
            self._check_choice(word)
            out.append(word)
        return tuple(out)

    def is_group(self, key: str) -> bool:
        """Whether `key` names a config group, maybe nested (`a/b`)."""
        return bool(re.fullmatch(r"[\w-]+(/[\w-]+)*", key)) and any((f / key).is_dir() for f in self.folders)

    def _check_choice(self, word: Word) -> None:
        if not word.is_group or word.kind == "delete" or word.is_sweep:
            return
        names = word.value if isinstance(word.value, list) else [word.value]
        for name in names:
            if not isinstance(name, str) or not name:
                raise word.error(f"a choice of {word.key} is a name.", f"Known: {', '.join(self.options(word.key))}.")
            if self.find(f"{word.key}/{name}") is None:
                raise word.error(f"there is no {word.key} {name!r}.", did_you_mean(name, self.options(word.key)))
        if word.package is None and "/" not in word.key and word.key not in self.schema.model_fields:
            path = self.find(f"{word.key}/{names[0]}")
            if path is not None and "@package" not in path.read_text(encoding="utf-8", errors="replace")[:512]:
                raise word.error(f"say where the {word.key} goes.", f"Write {word.key}@{word.key}s.NAME={names[0]}.")

    def find(self, name: str) -> Path | None:
        """The file of a configuration (`duel-local`, `model/tiny`), or None."""
        return next((path for f in self.folders if (path := f / f"{name}.yaml").is_file()), None)

    # -- documents

    def compose(self, name: str | None, words: Sequence[Word] = ()) -> Document:
        """The document of the profile `name` (None: of the groups in `words` alone) with the words applied.

        Sweeps are not allowed here. Hydra composes each choice of groups once; the values are set on a copy. A group
        that the profile's defaults list does not name is merged beneath the profile, so that what the profile itself
        says stays above it.
        """
        known = self._known(name)
        chosen = {w.choice: w for w in words if w.is_group}
        beneath = [w for w in chosen.values() if w.choice not in known and w.kind == "set"]
        for word in beneath:
            if word.choice.replace(MARK, "") in known:
                raise word.error(
                    "Hydra cannot replace the file of a server whose name begins with a digit.", "Use --servers NAME."
                )
        below = [f"+{w.choice}={w.text}" for w in beneath]
        over = [_group(w, known) for w in chosen.values() if w not in beneath]
        draft = Document(name, {}, tuple(words), tuple(self._all_files(name)))
        with self._translated(draft):
            parts = [self._compose(None, below)] if below else []
            merged = OmegaConf.merge(*parts, self._compose(name, over))
            sources = (*self._sources(None, below), *self._sources(name, over))
            draft = Document(name, {}, tuple(words), sources)
            for word in words:
                if not word.is_group:
                    _apply(word, merged)
            data = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
        assert isinstance(data, dict)
        return Document(name, {str(k): v for k, v in data.items()}, tuple(words), sources)

    def names(self, name: str | None, words: Sequence[Word], keys: Keys) -> list[str]:
        """The keys directly below `keys` that the files of a profile say, with the words' group choices."""
        known = self._known(name)
        over = [_group(w, known) for w in {w.choice: w for w in words if w.is_group}.values() if w.choice in known]
        found = [n for s in self._sources(name, over) for n in keys_below(s, keys)]
        return list(dict.fromkeys(found))

    def validate(self, document: Document, model: type[M], under: Keys = ()) -> M:
        """The part of a document below `under` as `model`; raises the first of its problems."""
        try:
            return model.model_validate(_part(document.data, under))
        except ValidationError as error:
            problems = explain(error, document, self.schema, under)
            if len(problems) > 1:
                more = f"({len(problems) - 1} more)"
                problems[0].hint = f"{problems[0].hint} {more}" if problems[0].hint else more
            raise problems[0] from None

    def problems(self, document: Document, model: type[BaseModel]) -> list[ComposeError]:
        """All that does not fit `model`; empty where the document is good."""
        try:
            model.model_validate(document.data)
        except ValidationError as error:
            return explain(error, document, self.schema)
        return []

    # -- Hydra

    @property
    def _loader(self) -> ConfigLoader:
        return GlobalHydra.instance().config_loader()

    def _compose(self, name: str | None, words: Sequence[str]) -> DictConfig:
        key = (name, tuple(words))
        if key not in self._composed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a profile without _self_ is as good: its own values come last
                document: DictConfig = compose(config_name=name, overrides=list(words))
            OmegaConf.set_struct(document, False)
            _join_marked(document)
            self._composed[key] = document
        return self._composed[key]

    def _defaults(self, name: str | None, words: Sequence[str]) -> Any:
        key = (name, tuple(words))
        if key not in self._listed:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._listed[key] = self._loader.compute_defaults_list(name, list(words), RunMode.RUN)
        return self._listed[key]

    def _known(self, name: str | None) -> frozenset[str]:
        """The groups (`group@package`) in a profile's defaults list."""
        if name is None:
            return frozenset()
        draft = Document(name, {}, (), tuple(self._all_files(name)))
        for source in draft.sources:
            problem = shape_problem(source.path)
            if problem:
                raise problem
        with self._translated(draft):
            return frozenset(self._defaults(name, ()).overrides.known_choices)

    def _sources(self, name: str | None, words: Sequence[str]) -> list[Source]:
        out = []
        for default in self._defaults(name, words).defaults if name or words else ():
            path = self.find(default.config_path or "")
            if path is not None and not default.config_path.startswith("hydra/"):
                package = tuple(part.removeprefix(MARK) for part in (default.package or "").split(".") if part)
                out.append(Source(path, package))
        return out

    def _all_files(self, name: str | None) -> Iterator[Source]:
        path = self.find(name) if name else None
        if path is not None:
            yield Source(path, ())

    @contextmanager
    def _translated(self, draft: Document) -> Iterator[None]:
        """Turn what Hydra and its companions raise into one sentence."""
        try:
            yield
        except ComposeError:
            raise
        except yaml.MarkedYAMLError as error:
            raise _broken(error) from None
        except (yaml.YAMLError, UnicodeError):
            raise ComposeError("the file is not YAML in UTF-8.", file=self._first_broken(draft)) from None
        except MissingConfigException as error:
            raise self._missing(error, draft) from None
        except OSError as error:
            raise ComposeError(f"cannot read {error.filename}: {error.strerror}.") from None
        except RecursionError:
            raise self._plain(draft, "the defaults lists go round in a circle.") from None
        except _RAISED as error:
            raise self._composition(error, draft) from None

    def _plain(self, draft: Document, message: str, hint: str | None = None) -> ComposeError:
        file = draft.sources[0].path if draft.sources else None
        return ComposeError(message, hint=hint, file=file)

    def _first_broken(self, draft: Document) -> Path | None:
        for folder in self.folders:
            for path in sorted(folder.rglob("*.yaml")):
                try:
                    yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
                except (UnicodeError, yaml.YAMLError):
                    return path
        return draft.sources[0].path if draft.sources else None

    def _missing(self, error: MissingConfigException, draft: Document) -> ComposeError:
        """A defaults list names a file that is not there."""
        group, _, choice = str(error.missing_cfg_file or "").rpartition("/")
        hint = did_you_mean(choice, self.options(group) if self.is_group(group) else [])
        message = f"there is no {group or 'profile'} {choice!r}."
        for word in reversed(draft.words):
            if word.is_group and word.key == group and word.value == choice:
                return word.error(message, hint)
        file, line = _said(self.folders, draft, choice)
        return ComposeError(message, hint=hint, file=file, line=line)

    def _composition(self, error: Exception, draft: Document) -> ComposeError:
        """One sentence for what Hydra found wrong with the files or with a word."""
        text = " ".join(str(part) for part in (error, error.__cause__ or "") if part)
        value = re.search(r"full_key: (\S+)", text)
        if value:
            return _unresolved(tuple(value[1].split(".")), text, draft)
        for word in draft.words:
            if word.kind == "delete" and word.is_group and f"Could not delete '{word.choice}" in text:
                return word.error(f"there is nothing to delete: this profile's defaults list has no {word.choice}.")
        for source in draft.sources if "Cannot merge" in text else ():
            listed = list_for_keys(source.path, self.groups)
            if listed:
                return ComposeError(f"{listed[0]} must be keys, not a list.", file=source.path, line=listed[1])
        for pattern, message, hint in _COMPOSITION:
            found = re.search(pattern, text)
            if found:
                file, line = _said(self.folders, draft, found[1])
                return ComposeError(message.format(found[1]), hint=hint, file=file, line=line)
        return self._plain(draft, "the files of this profile do not fit together.", "See its defaults list.")


def _unresolved(keys: Keys, text: str, draft: Document) -> ComposeError:
    """A value that OmegaConf cannot resolve; interpolations are read in the document, not on the command line."""
    key = ".".join(keys)
    if "Missing mandatory value" in text:
        return draft.error(f"{key} has no value yet.", [keys], "Say one in place of ???.")
    missing = re.search(r"Interpolation key '([^']+)'|Environment variable '([^']+)'|resolver '?([\w.]+)'?", text)
    if missing is None:
        return draft.error(f"{key} holds an interpolation that cannot be resolved.", [keys])
    what = ("key", "environment variable", "resolver")[(missing.lastindex or 1) - 1]
    return draft.error(f"{key} refers to the {what} {missing[missing.lastindex or 1]!r}, which is not there.", [keys])


# Hydra's reasons by what they name, and our sentence for each.
_COMPOSITION: tuple[tuple[str, str, str | None], ...] = (
    (r"specify '([^']+)'", "{0} is not chosen.", "Choose one on the command line: GROUP=NAME."),
    (r"Could not override '([^']+)'", "the defaults list overrides {0!r}, which it does not name.", None),
    (r"Multiple values for (\S+)\.", "the defaults lists choose {0} twice.", "Write `override` before one of them."),
    (r"(\S+) appears more than once", "the defaults lists name {0} twice.", None),
    (r"Duplicate (_self_)", "the defaults list names {0} twice.", None),
    (r"In '([^']+)': \w*(?:Type|Validation)Error", "{0} holds a list or a text where keys should be.", None),
)


def _readable(folder: Path) -> None:
    try:
        with os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        raise ComposeError(
            f"the profile folder {folder} cannot be read: {error.strerror}.",
            hint="It must be a folder that you may read.",
        ) from None


def _group(word: Word, known: frozenset[str]) -> str:
    """A group choice as Hydra takes it: `+` only where the defaults list does not name the group."""
    if word.kind == "delete":
        return f"~{word.choice}" + (f"={word.text}" if word.text else "")
    return f"{'' if word.choice in known else '+'}{word.choice}={word.text}"


def _apply(word: Word, document: Any) -> None:
    """Set or delete what a word says, as Hydra does after composing; a key needs no `+` here."""
    if word.is_sweep:
        raise word.error("several values are a sweep.", "Add --multirun, or quote a text that holds commas.")
    key = ".".join(word.path)
    if word.kind != "delete":
        try:
            OmegaConf.update(document, key, word.value, merge=True, force_add=True)
        except (OmegaConfBaseException, TypeError, ValueError, LookupError):
            raise word.error(f"{key} cannot be set: what stands there is of another kind.") from None
        return
    above, leaf = word.path[:-1], word.path[-1]
    node = OmegaConf.select(document, ".".join(above), default=None) if above else document
    if not isinstance(node, DictConfig) or leaf not in node:
        raise word.error(f"there is nothing to delete: no file of this profile says {key}.")
    if word.value is not None and word.value != OmegaConf.select(document, key):
        raise word.error(f"{key} is {show(OmegaConf.select(document, key))}, so it is not deleted.")
    del node[leaf]


def _join_marked(document: DictConfig) -> None:
    """Put a chosen server whose name begins with a digit where it belongs (see words.MARK)."""
    servers = document.get("servers")
    if isinstance(servers, DictConfig):
        for name in [n for n in servers if isinstance(n, str) and n.startswith(MARK)]:
            plain = name.removeprefix(MARK)
            servers[plain] = OmegaConf.merge(servers.get(plain) or {}, servers.pop(name))


def _part(data: Any, under: Keys) -> Any:
    for key in under:
        data = data.get(key, {}) if isinstance(data, Mapping) else {}
    return data


def _broken(error: yaml.MarkedYAMLError) -> ComposeError:
    mark = error.problem_mark or error.context_mark
    what = (error.problem or error.context or "it cannot be read").rstrip(".")
    if mark is None:
        return ComposeError(f"broken YAML: {what}.")
    return ComposeError(f"broken YAML: {what}.", file=Path(mark.name), line=mark.line + 1, column=mark.column + 1)


def _said(folders: Sequence[Path], draft: Document, name: str) -> tuple[Path | None, int | None]:
    """File and line that say `name`: in the profile itself, else in a file of the folders, else nowhere known."""
    leaf = re.compile(rf"(?<![\w-]){re.escape(re.split(r'[/.@]', name)[-1])}(?![\w-])")
    first = [s.path for s in draft.sources]
    for path in [*first, *(p for f in folders for p in sorted(f.glob("*/*.yaml")))]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError):
            continue
        for at, line in enumerate(lines, 1):
            if leaf.search(line.split("#", 1)[0]):
                return path, at
    return (first[0] if first else None), None


def compose_run(words: Sequence[str] = (), *, folders: Sequence[Path] | None = None) -> RunConfig:
    """The configuration that `python -m runners WORD...` runs with (without its `stage=`); raises ComposeError.

    Groups that no word chooses take DEFAULT_GROUPS.
    """
    if folders is None:
        own = user_folder()
        folders = [*([own] if own.is_dir() else []), shipped_folder()]
    with Composer(folders, RunConfig) as composer:
        given = composer.parse(words)
        chosen = {w.key for w in given if w.is_group}
        rest = [f"{group}={name}" for group, name in DEFAULT_GROUPS.items() if group not in chosen]
        return composer.validate(composer.compose(None, [*composer.parse(rest), *given]), RunConfig)


def validate_data(data: dict[str, Any], model: type[M]) -> M:
    """Plain data that comes from no file as `model`; raises the first of its problems as ComposeError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise explain(error, Document(None, data, ()), model)[0] from None
