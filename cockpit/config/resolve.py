"""A profile and the user's words become one validated profile a server and sweep point.

Precedence of values: `SERVER:key=value` over the words for all over the server's own overrides over the files. The
training that a server's vendor asks for lies beneath all words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cockpit.config import Point, Resolved
from cockpit.config.find import find_servers, folders, profile_path
from cockpit.config.models import Profile, Server, ServersOnly
from cockpit.config.sweep import GROUP_KEYS, Addressed, expand, refuse_sweeps, split
from cockpit.core.errors import ConfigError, did_you_mean
from cockpit.core.ids import slug
from runners.compose import ComposeError, Composer, Document, Origin, Word

if TYPE_CHECKING:
    from cockpit.core.records import ServerSpec

VENDOR_OF = {"cuda": "nvidia", "rocm": "amd", "cpu": "cpu"}  # of a training's backend
TRAINING_OF = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
_MORE = "Add --multirun to run each of the values, or quote a text that holds commas: KEY='A,B'."


@contextmanager
def as_config_error() -> Iterator[None]:
    """Turn a ComposeError into the cockpit's own."""
    try:
        yield
    except ComposeError as error:
        raise _translated(error) from None


def _translated(error: ComposeError) -> ConfigError:
    return ConfigError(error.message, hint=error.hint, file=error.file, line=error.line, column=error.column)


def load(
    profile: str,
    overrides: Sequence[str],
    *,
    servers: Sequence[str] | None,
    multirun: bool,
    detect: Mapping[str, str],
) -> Resolved:
    """See cockpit.config.load."""
    profile_path(profile)
    with as_config_error(), Composer(folders(), Profile) as composer:
        return _Loader(composer, profile, overrides, servers, multirun, detect).resolve()


def problems(profile: str, overrides: Sequence[str]) -> list[ConfigError]:
    """See cockpit.config.validate_all."""
    profile_path(profile)
    try:
        load(profile, overrides, servers=None, multirun=True, detect={})
    except ConfigError as first:
        common, _ = split(overrides)
        try:
            with as_config_error(), Composer(folders(), Profile) as composer:
                words, _ = expand(composer, composer.parse(common))[0]
                found = composer.problems(composer.compose(profile, words), Profile)
        except ConfigError:
            found = []
        return [_translated(error) for error in found] or [first]
    return []


class _Loader:
    """The steps of one load, with what they share."""

    def __init__(
        self,
        composer: Composer,
        name: str,
        overrides: Sequence[str],
        servers: Sequence[str] | None,
        multirun: bool,
        detect: Mapping[str, str],
    ) -> None:
        self.composer = composer
        self.name = name
        self.overrides = tuple(overrides)
        self.wanted = servers
        self.detect = detect
        common, self.addressed = split(overrides)
        self.words = composer.parse(common)
        if not multirun:
            refuse_sweeps(self.words, "several values are a sweep.", _MORE)

    def resolve(self) -> Resolved:
        """All points, each with a profile a server."""
        expanded = expand(self.composer, self.words)
        own = self._own_servers(expanded[0][0])
        extra = self._extra(own)
        added = self.composer.parse([f"server@servers.{name}={name}" for name in extra])
        self._check_names(expanded[0][0], [*own, *extra])
        points, bases = [], []
        for words, sweep in expanded:
            base = self.composer.compose(self.name, (*added, *words))
            written = self.composer.validate(base, ServersOnly).servers
            names = self._selected(written)
            bases.append({name: written[name] for name in names})
            configs = {name: self._server(name, written[name], base) for name in names}
            _check_slots(configs)
            points.append(Point(sweep=sweep, configs=configs))
        _check_ids(bases[0])
        _check_fixed(points)
        first = next(iter(points[0].configs.values()))
        return Resolved(self.name, first.model_copy(update={"servers": bases[0]}), tuple(points), self.overrides)

    # -- which servers

    def _own_servers(self, words: Sequence[Word]) -> list[str]:
        """The servers that the profile's files name, and those that a word makes or deletes."""
        names = self.composer.names(self.name, words, ("servers",))
        for word in words:
            path = tuple(word.package.replace("$", "").split(".")) if word.package else word.path
            if path[0] != "servers":
                continue
            if word.kind == "delete" and not word.is_group and len(path) == 2:
                names = [n for n in names if n != path[1]]
            elif isinstance(word.value, dict) and len(path) == 1:
                names += [str(key) for key in word.value]
            elif len(path) > 1 and (word.kind in ("add", "force") or isinstance(word.value, dict)):
                names.append(path[1])
        return list(dict.fromkeys(names))

    def _extra(self, own: Sequence[str]) -> list[str]:
        """The wanted servers that only a server file knows."""
        if self.wanted is None:
            return []
        if not self.wanted or "" in self.wanted:
            raise ConfigError("--servers names no server.", hint=f"The profile has {', '.join(own) or 'none'}.")
        twice = next((n for n in self.wanted if list(self.wanted).count(n) > 1), None)
        if twice is not None:
            raise ConfigError(f"--servers names {twice!r} twice.")
        files = {info.name for info in find_servers()}
        for name in self.wanted:
            if name not in own and name not in files:
                raise ConfigError(
                    f"there is no server {name!r} in the profile {self.name!r}, and no server file of that name.",
                    hint=did_you_mean(name, {*own, *files}),
                )
        return [name for name in self.wanted if name not in own]

    def _check_names(self, words: Sequence[Word], known: Sequence[str]) -> None:
        """Refuse a word for a server that is not there: it would quietly make a new one."""
        for item in self.addressed:
            if item.server not in known:
                raise item.origin.error(f"there is no server {item.server!r}.", did_you_mean(item.server, known))
        for word in words:
            path = tuple(word.package.replace("$", "").split(".")) if word.package else word.path
            if path[0] == "servers" and len(path) > 1 and path[1] not in known and word.kind != "delete":
                near = did_you_mean(path[1], known) or "The profile has none."
                raise word.error(f"there is no server {path[1]!r}.", f"{near} Put a + before the word to add one.")

    def _selected(self, written: Mapping[str, Server]) -> list[str]:
        names = list(self.wanted) if self.wanted is not None else list(written)
        if not names:
            raise ConfigError(
                f"the profile {self.name!r} names no server.",
                hint="Say --servers NAME with a server file, or add servers to the profile.",
                file=self.composer.find(self.name),
            )
        return names

    # -- one server at one point

    def _server(self, name: str, server: Server, base: Document) -> Profile:
        words = base.words
        own = self._own_words(name, server, base)
        mine = self._for_server(name, [a for a in self.addressed if a.server == name])
        said = (*own, *words, *mine)
        explicit = next((w for w in reversed(said) if _says_training(w)), None)
        document = self.composer.compose(self.name, said)
        server = self.composer.validate(document, ServersOnly).servers[name]
        backend = _backend(document)
        vendor = self._vendor(name, server, backend, explicit is not None)
        if explicit is None and VENDOR_OF.get(backend, backend) != vendor:
            document = self.composer.compose(
                self.name, (*self.composer.parse([f"training={TRAINING_OF[vendor]}"]), *said)
            )
        config = self.composer.validate(document, Profile)
        self._check_vendor(name, vendor, config, document, explicit)
        resolved = server.model_copy(update={"vendor": vendor, "training": config.training.name})
        return config.model_copy(update={"servers": {name: resolved}})

    def _own_words(self, name: str, server: Server, base: Document) -> tuple[Word, ...]:
        """The words that the server itself says, its choice of training first."""
        items = [
            Addressed(name, text, _origin(base, text, ("servers", name, "overrides", str(at))))
            for at, text in enumerate(server.overrides)
        ]
        if server.training is not None:
            text = f"training={server.training}"
            items.insert(0, Addressed(name, text, _origin(base, text, ("servers", name, "training"))))
        return self._for_server(name, items)

    def _for_server(self, name: str, items: Iterable[Addressed]) -> tuple[Word, ...]:
        """Words for one server, refused where they would speak of the group or of another server."""
        out = []
        for item in items:
            head = item.text.lstrip("+~").split("=", 1)[0]
            if "." in head or head in Server.model_fields:
                _hint_server_field(item, head)
            word = self.composer.parse([item.text], [item.origin])[0]
            refuse_sweeps(
                [word], "a word for one server takes one value.", "Sweep over all servers, without SERVER:."
            )
            if word.path[0] in GROUP_KEYS:
                raise word.error(f"{word.path[0]} is of the whole group.", "Say it without a server.")
            if (word.package or word.key).split(".")[0] == "servers" and (
                len(word.path) < 3 or word.path[1] != name or word.path[2] in ("training", "overrides")
            ):
                raise word.error(
                    f"a word for the server {name} cannot set this.", f"Say it without a server, or {name}:KEY=VALUE."
                )
            out.append(replace(word, origin=item.origin))
        return tuple(out)

    def _vendor(self, name: str, server: Server, backend: str, explicit: bool) -> str:
        """The vendor of a server: said, or cpu where a CPU training is asked for, found, implied, or guessed."""
        if server.vendor != "auto":
            return server.vendor
        if explicit and backend == "cpu":
            return "cpu"
        if name in self.detect:
            return self.detect[name]
        if not explicit and server.address == "local":
            return "cpu"
        return VENDOR_OF.get(backend, "cpu")

    def _check_vendor(self, name: str, vendor: str, config: Profile, document: Document, word: Word | None) -> None:
        backend = config.training.backend
        if backend == "cpu" or VENDOR_OF[backend] == vendor:
            return
        has = "no GPU (vendor cpu)" if vendor == "cpu" else f"{vendor} GPUs"
        message = f"training on {backend} is for {VENDOR_OF[backend]} GPUs, and server {name!r} has {has}."
        hint = f"Leave the training to the vendor, or say {name}:training={TRAINING_OF[vendor]}."
        if word is not None:
            raise word.error(message, hint)
        raise document.error(message, [("training", "backend"), ("training",)], hint)


def _origin(base: Document, text: str, keys: tuple[str, ...]) -> Origin:
    """Where a server says one of its own words: in a word of the command line, else in a file."""
    word = base.word_for(keys)
    if word is not None:
        return word.origin
    return Origin(text, *(base.place(keys) or ()))


def _hint_server_field(item: Addressed, head: str) -> None:
    first = head.split(".", 1)[0]
    if first in Server.model_fields and first not in Profile.model_fields:
        raise item.origin.error(
            f"{first} is a key of the server itself.", f"Write servers.{item.server}.{head}=VALUE, without a prefix."
        )


def _says_training(word: Word) -> bool:
    """Whether a word chooses what the training runs on."""
    if word.kind == "delete":
        return False
    if word.choice in ("training", "training@training"):
        return word.is_group or "backend" in (word.value if isinstance(word.value, dict) else ())
    return word.key == "training.backend"


def _backend(document: Document) -> str:
    """The backend of a document that is not validated yet."""
    training = document.data.get("training")
    value = training.get("backend", "cpu") if isinstance(training, Mapping) else "cpu"
    return value if isinstance(value, str) else "cpu"


# -- all servers together


def _specs(configs: Mapping[str, Profile]) -> dict[str, ServerSpec]:
    return {name: config.servers[name].spec(name, config) for name, config in configs.items()}


def _check_slots(configs: Mapping[str, Profile]) -> None:
    """Servers that share a queue must agree on how many runs it takes at once."""
    seen: dict[tuple[str, str, str, str], ServerSpec] = {}
    for spec in _specs(configs).values():
        other = seen.setdefault(spec.queue_key, spec)
        if other.slots != spec.slots:
            raise ConfigError(
                f"servers {other.name!r} and {spec.name!r} share the slot {spec.slot!r} of {spec.address} but say "
                f"slots {other.slots} and {spec.slots}.",
                hint="Give both the same slots, or slots of different names.",
            )


def _check_ids(names: Iterable[str]) -> None:
    """Run ids hold a server's name in small letters: two servers must not get the same."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(slug(name), name)
        if other != name:
            raise ConfigError(f"servers {other!r} and {name!r} are too alike to name runs after.", hint="Rename one.")


_VARYING = ("env", "timeout_s", "stall_after_s", "stop_grace_s")  # of a run, not of the machine


def _check_fixed(points: Sequence[Point]) -> None:
    """A sweep varies runs, not machines."""
    first = _specs(points[0].configs)
    for point in points[1:]:
        if list(point.configs) != list(first):
            raise ConfigError("a sweep cannot change which servers there are.")
        for name, spec in _specs(point.configs).items():
            for key in spec.__dataclass_fields__:
                if key not in _VARYING and getattr(spec, key) != getattr(first[name], key):
                    raise ConfigError(f"a sweep cannot change servers.{name}.{key}: it is one machine.")
