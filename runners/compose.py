"""Composition: Hydra's compose API over folders of YAML, then the schema.

The user's folder is searched before the shipped one, by a SearchPathPlugin (Hydra's own `hydra.searchpath` cannot
find a primary configuration there). Used by the cockpit, and by `python -m runners stage=train training=rocm`.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from typing_extensions import Self

from runners.explain import Document, Keys, Source, explain, keys_below, shape_problem, show
from runners.refusals import RAISED, translated
from runners.schema import RunConfig, Training
from runners.words import MARK, ComposeError, Origin, Word, check_key, did_you_mean, parse

__all__ = ["ComposeError", "Composer", "Document", "Origin", "Word", "compose_run", "shipped_folder", "user_folder"]

APP = "ekvi-cockpit"
DEFAULT_GROUPS = {"model": "tiny", "data": "pydoc", "training": "cpu", "runner": "megatron"}
_LENIENT = RunMode.MULTIRUN  # lists defaults although a choice is still ???: composing refuses that
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
        below = [w for w in chosen.values() if w.choice not in known and w.kind == "set"]
        for word in below:
            if word.choice.replace(MARK, "") in known:
                raise word.error(
                    "Hydra cannot replace the file of a server whose name begins with a digit.", "Use --servers NAME."
                )
        beneath = [f"+{w.choice}={w.text}" for w in below]
        over = _choices(words, known, without=below)
        files = partial(self._files, name, beneath, over)
        with self._translated(Document(name, {}, tuple(words), files)):
            parts = [self._compose(None, beneath)] if beneath else []
            merged = OmegaConf.merge(*parts, self._compose(name, over))
            for word in words:
                if not word.is_group:
                    _apply(word, merged)
            _untwin(words, merged)
            data = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
        assert isinstance(data, dict)
        return Document(name, {str(k): v for k, v in data.items()}, tuple(words), files)

    def names(self, name: str | None, words: Sequence[Word], keys: Keys) -> list[str]:
        """The keys directly below `keys` that the files of a profile say, with the words' group choices."""
        known = self._known(name)
        over = _choices([w for w in words if w.choice in known], known)
        with self._translated(Document(name, {}, tuple(words), partial(self._files, name, (), ()))):
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
                self._listed[key] = self._loader.compute_defaults_list(name, list(words), _LENIENT)
        return self._listed[key]

    def _known(self, name: str | None) -> dict[str, Any]:
        """The groups (`group@package`) in a profile's defaults list, with what is chosen there."""
        path = self.find(name) if name else None
        problem = shape_problem(path) if path else None
        if problem:
            raise problem
        with self._translated(Document(name, {}, (), partial(self._files, name, (), ()))):
            return dict(self._defaults(name, ()).overrides.known_choices) if name else {}

    def _files(self, name: str | None, beneath: Sequence[str], over: Sequence[str]) -> tuple[Source, ...]:
        """The files of a composition in the order of their merging; of a broken one the profile's own file."""
        try:
            return (*self._sources(None, beneath), *self._sources(name, over))
        except (*RAISED, RecursionError, yaml.YAMLError, OSError):
            path = self.find(name) if name else None
            return (Source(path, ()),) if path else ()

    def _sources(self, name: str | None, words: Sequence[str]) -> list[Source]:
        out = []
        for default in self._defaults(name, words).defaults if name or words else ():
            path = self.find(default.config_path or "")
            if path is not None and not default.config_path.startswith("hydra/"):
                package = tuple(part.removeprefix(MARK) for part in (default.package or "").split(".") if part)
                out.append(Source(path, package))
        return out

    def _translated(self, draft: Document) -> AbstractContextManager[None]:
        return translated(draft, self.folders, lambda group: self.options(group) if self.is_group(group) else [])


def _readable(folder: Path) -> None:
    try:
        with os.scandir(folder) as entries:
            next(entries, None)
    except OSError as error:
        raise ComposeError(
            f"the profile folder {folder} cannot be read: {error.strerror}.",
            hint="It must be a folder that you may read.",
        ) from None


def _choices(words: Sequence[Word], known: Mapping[str, Any], without: Sequence[Word] = ()) -> list[str]:
    """The group choices as Hydra takes them: the last of each, `+` only for a group that no defaults list names.

    Where all of them say what the defaults list says anyway, none is needed: equal documents are composed once.
    """
    chosen = [w for w in {w.choice: w for w in words if w.is_group}.values() if w not in without]
    if all(w.kind != "delete" and known.get(w.choice, w) == w.value for w in chosen):
        return []
    return [
        f"~{w.choice}{'=' if w.text else ''}{w.text}"
        if w.kind == "delete"
        else f"{'' if w.choice in known else '+'}{w.choice}={w.text}"
        for w in chosen
    ]


def _apply(word: Word, document: Any) -> None:
    """Set or delete what a word says, as Hydra does after composing; a key needs no `+` here."""
    if word.is_sweep:
        raise word.error("a key takes one value here.", "Quote a text that holds commas.")
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


def _untwin(words: Sequence[Word], document: Any) -> None:
    """Drop what the files say in one way where the words say it in the other (see schema.Training.TWINS)."""
    said = {word.path for word in words if not word.is_group and word.kind != "delete" and word.value is not None}
    node = OmegaConf.select(document, "training", default=None)
    for twins in Training.TWINS if isinstance(node, DictConfig) else ():
        for own, other in (twins, twins[::-1]):
            if ("training", own) in said and ("training", other) not in said and other in node:
                node[other] = None


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


def compose_run(words: Sequence[str] = (), *, folders: Sequence[Path] | None = None) -> RunConfig:
    """The configuration that `python -m runners WORD...` runs with (without its `stage=`); raises ComposeError.

    Groups that no word chooses take DEFAULT_GROUPS.
    """
    if folders is None:
        own = user_folder()
        folders = [*([own] if own.is_dir() else []), shipped_folder()]
    with Composer(folders, RunConfig) as composer:
        given = composer.parse(words)
        for word in given:
            if word.is_sweep:
                raise word.error("several values are a sweep.", "Add --multirun, or quote a text that holds commas.")
        chosen = {w.key for w in given if w.is_group}
        rest = [f"{group}={name}" for group, name in DEFAULT_GROUPS.items() if group not in chosen]
        return composer.validate(composer.compose(None, [*composer.parse(rest), *given]), RunConfig)


def validate_data(data: dict[str, Any], model: type[M], words: Sequence[Word] = ()) -> M:
    """Plain data that comes from no file, but maybe from `words`, as `model`; raises the first of its problems."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise explain(error, Document(None, data, tuple(words)), model)[0] from None


def data_of(texts: Sequence[str], model: type[BaseModel]) -> tuple[dict[str, Any], tuple[Word, ...]]:
    """The plain data that words set (`address=local env.A=1`), their keys checked; raises ComposeError."""
    words = tuple(parse(text, lambda _: False) for text in texts)
    document = OmegaConf.create()
    for word in words:
        check_key(word, model)
        _apply(word, document)
    with translated(Document(None, {}, words), (), lambda _: []):
        data = OmegaConf.to_container(document, resolve=False)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}, words
