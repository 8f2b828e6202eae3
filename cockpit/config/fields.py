"""What single values of a server or a launcher may be. Each refusal is a sentence that says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from runners.schema import refuse

_SECRET = re.compile(
    r"(TOKEN|PASSWORD|PASSWD|SECRET|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS)(_|$)|(^|_)PASS(_|$)",
    re.IGNORECASE,
)
# Logins in a URL, keys in PEM, and tokens as Hugging Face, GitHub, GitLab, NVIDIA, AWS and others write theirs.
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![A-Za-z0-9])(?:hf_|gh[pousr]_|github_pat_|glpat-|nvapi-|sk-|AKIA)[A-Za-z0-9_-]{16,}"
)
_SIZE = re.compile(r"\d+(\.\d+)?([kmgtp]i?)?b?", re.IGNORECASE)
_LIMIT = re.compile(r"-?\d{1,19}(:-?\d{1,19})?")
_LIMIT_NAME = re.compile(r"[a-z]{1,20}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]*(:[A-Za-z0-9_][A-Za-z0-9_.$-]*)?")
_WORD = re.compile(r"[^\s\x00-\x1f-][^\s\x00-\x1f]*")
# What the launcher says itself, or what would keep the agent from seeing how a container ended.
_OURS = ("--name", "--entrypoint", "--rm", "--restart", "--detach", "-d", "--interactive", "-i", "--tty", "-t", "-it",
         "--pull", "--cidfile", "--stop-signal", "--user", "-u", "--help", "--")  # fmt: skip
_RESERVED = ("/ekvi", "/run/secrets")
_AGENTS = re.compile(
    r"config\.json|states\.jsonl|telemetry\.(\d+\.)?jsonl(\.tmp)?|spool\.log|out"
    r"|(shim|pipe|container)\.\d+(\.json)?(\.tmp)?"
)


def no_secret(name: str, value: str, where: str) -> None:
    """Refuse a variable that looks like a secret: what stands in a profile is shown, journaled and in argv."""
    if _SECRET.search(name):
        raise refuse(f"{name} looks like a secret, which has no place in {where}: name it in secrets.", name)
    if _SECRET_VALUE.search(value):
        raise refuse(f"{name} holds a login or a token, which has no place in {where}: name it in secrets.", name)
    if "\0" in value:
        raise refuse(f"{name} holds a NUL character, which no variable can.", name)


def _absolute(path: str, what: str, *, home: bool = False) -> str:
    starts = ("/", "~/") if home else ("/",)
    if not (path.startswith(starts) or (home and path == "~")):
        raise refuse(f"{what} {path!r} is not absolute: begin it with {' or '.join(starts)}.")
    if re.search(r"[\x00\r]", path):
        raise refuse(f"{what} {path!r} holds a character that no path can be given with.")
    return path


def _target(path: str, what: str) -> str:
    _absolute(path, what)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise refuse(f"{what} {path!r} is no folder or file of its own in the container.")
    plain = "/" + "/".join(parts)
    if any(plain == own or plain.startswith(own + "/") for own in _RESERVED):
        raise refuse(f"{what} {path!r} is where the cockpit's own things are in the container: take another.")
    return plain


def mounts(value: Mapping[str, str]) -> dict[str, str]:
    """`PATH ON THE SERVER: PATH IN THE CONTAINER`, with `:ro` behind for read-only. Raises refuse()."""
    out = {}
    for source, target in value.items():
        _absolute(source, "the mount's source", home=True)
        plain = _target(target.removesuffix(":ro"), f"the mount of {source!r} at")
        out[source] = plain + (":ro" if target.endswith(":ro") else "")
    return out


def files(value: Mapping[str, str]) -> dict[str, str]:
    """`PATH HERE: PATH THERE`, absolute in a container, in the run's folder for processes. Raises refuse()."""
    out = {}
    for local, target in value.items():
        if not local or "\0" in local:
            raise refuse(f"{local!r} is no file or folder here.")
        out[local] = _target(target, f"the place of {local!r}") if target.startswith("/") else _link(local, target)
    return out


def _link(local: str, target: str) -> str:
    parts = target.split("/")
    if "\0" in target or any(part in ("", ".", "..") for part in parts):
        raise refuse(f"the place of {local!r}, {target!r}, is no path below the run's folder.")
    if _AGENTS.fullmatch(parts[0]):
        raise refuse(f"the place of {local!r}, {target!r}, is a name of the run's own folder: take another.")
    return target


def apart(named: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse two things at one place; `named` maps a key to its sources and places."""
    seen: dict[str, str] = {}
    for key, places in named.items():
        for source, place in places.items():
            plain = place.removesuffix(":ro") if key == "mounts" else place
            if plain in seen:
                raise refuse(f"{key}: {source!r} and {seen[plain]!r} would both be at {plain!r}.", key)
            seen[plain] = source


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise refuse(f"{text!r} is no name of an image: write [REGISTRY/]NAME[:TAG], or NAME@DIGEST.")
    return text


def _size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and not _SIZE.fullmatch(value):
        raise refuse(f"{value!r} is no size: write 16g, 512m or a number of bytes.")
    return value


def _user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise refuse(f"{text!r} is no user: write self, NAME or UID, with :GROUP behind if need be.")
    return text


def _user_value(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def ulimits(value: Mapping[str, str | int | None]) -> dict[str, str | int | None]:
    """Limits by their names: a number (-1 is none), SOFT:HARD, or null to leave one out. Raises refuse()."""
    for name, limit in value.items():
        if not _LIMIT_NAME.fullmatch(name):
            raise refuse(f"{name!r} is no limit: memlock, stack and nofile are some.")
        if limit is not None and not _LIMIT.fullmatch(str(limit)):
            raise refuse(f"the limit {name} cannot be {limit!r}: write a number, SOFT:HARD, or null.", name)
    return dict(value)


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise refuse(f"{text!r} is no value for a flag: no spaces, and no - at its beginning.")
    return text


def _shell(text: str) -> str:
    if not text.startswith("/"):
        raise refuse(f"shell {text!r} is not absolute: /bin/sh is usual.")
    return _word(text)


def _text(text: str) -> str:
    if "\0" in text:
        raise refuse("a word holds a NUL character, which no program can be given.")
    return text


def _inner(path: str) -> str:
    return _absolute(path, "workdir") if not path.startswith("${") else _text(path)


def extra(words: Sequence[str]) -> tuple[str, ...]:
    """Further flags of the engine, before the image. Raises refuse()."""
    if words and not words[0].startswith("-"):
        raise refuse(f"extra are flags, and {words[0]!r} is none: it would be taken for the image.")
    for word in words:
        _text(word)
        flag = word.split("=", 1)[0]
        if flag in _OURS:
            mend = "launcher.user" if flag in ("--user", "-u") else "launcher.entrypoint" if "entry" in flag else None
            raise refuse(
                f"extra cannot hold {flag}: " + (f"that is {mend}." if mend else "the cockpit sets it itself.")
            )
        if "ekvi." in word and "label" in words[max(0, words.index(word) - 1)] + flag:
            raise refuse("extra cannot hold a label ekvi.*: the agent finds its containers by them.")
        if _SECRET_VALUE.search(word):
            raise refuse("extra holds a login or a token, which has no place there: name it in secrets.")
    for variable in _variables(words):
        if _SECRET.search(variable.split("=", 1)[0]):
            raise refuse(f"extra sets {variable.split('=', 1)[0]}, which looks like a secret: name it in secrets.")
    return tuple(words)


def _variables(words: Sequence[str]) -> Iterator[str]:
    """The values of --env among flags, however they are written."""
    for at, word in enumerate(words):
        if word in ("-e", "--env") and at + 1 < len(words):
            yield words[at + 1]
        elif word.startswith("--env="):
            yield word.removeprefix("--env=")
        elif word.startswith("-e") and len(word) > 2:
            yield word[2:].removeprefix("=")


Mounts = Annotated[dict[str, str], AfterValidator(mounts)]
Files = Annotated[dict[str, str], AfterValidator(files)]
Image = Annotated[str, AfterValidator(_image)]
Size = Annotated[str, BeforeValidator(_size)]
User = Annotated[str, AfterValidator(_user), BeforeValidator(_user_value)]
Ulimits = Annotated[dict[str, str | int | None], AfterValidator(ulimits)]
FlagValue = Annotated[str, AfterValidator(_word)]
Shell = Annotated[str, AfterValidator(_shell)]
InnerPath = Annotated[str, AfterValidator(_inner)]
HomePath = Annotated[str, AfterValidator(lambda path: _absolute(path, "hf_cache", home=True))]
Text = Annotated[str, AfterValidator(_text)]
Extra = Annotated[tuple[str, ...], AfterValidator(extra)]
