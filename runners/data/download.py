"""Files by URL: resumed where a transfer broke, checked by size and SHA-256, said in wire lines.

CACHE/downloads/<key>/<name>         the whole file
CACHE/downloads/<key>/.<name>.part   what has arrived, with .<name>.json beside it: which version of it this is
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runners import hub, wire
from runners.data.entry import digest, locked
from runners.errors import ConfigurationError, RunnerError, writing

TIMEOUT_S = 60.0  # without a byte
TRIES = 5
PROGRESS_S = 5.0  # between two lines about one download
_BLOCK = 1 << 20
_NAME_BY = 200  # of a file; file systems take 255
_AGENT = "ekvi-cockpit"
_TRANSPORT = (OSError, http.client.HTTPException)  # urllib's errors are OSErrors


class _Broken(Exception):
    """A transfer ended early; what has arrived is kept."""


@dataclass
class _Progress:
    """Says from time to time how far a download is."""

    name: str
    total: int | None
    said: float = 0.0

    def tell(self, done: int, *, last: bool = False) -> None:
        """One wire line, where it is time for one."""
        if not last and time.monotonic() - self.said < PROGRESS_S:
            return
        self.said = time.monotonic()
        share = f"{done / 1e6:.1f} MB" if self.total is None else f"{done / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        data = {"name": self.name, "done_by": done, "total_by": self.total}
        wire.emit("diagnostic", level="info", code="download", message=f"{self.name}: {share}", data=data)


def place(url: str, cache: Path) -> Path:
    """Where the file of `url` lies in `cache` once it is there."""
    name = os.path.basename(unquote(urlsplit(url).path)).replace("\0", "")
    while len(os.fsencode(name)) > _NAME_BY:
        name = name[1:]  # its ending says how it is read
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    return cache / "downloads" / key / (name.lstrip(".") or "file")


def fetch(url: str, cache: Path, *, sha256: str | None = None, offline: bool = False) -> Path:
    """The file of `url` in `cache`, downloaded where it is not there whole.

    Raises ConfigurationError for what the user can mend (no such file, another hash, offline), RunnerError for a
    network that does not carry and a cache that cannot be written.
    """
    path = place(url, cache)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(f"data.urls: {url} is no http or https address.", every_rank=True)
    if path.is_file():
        return path
    if hub.without_network(offline):
        raise ConfigurationError(
            f"offline mode is on, and {url} is not at {path}.",
            hint="Download it once without offline mode, or put the file there.",
            every_rank=True,
        )
    with writing(f"the cache {cache}"), locked(path.parent.parent, path.parent.name):
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            part = path.with_name(f".{path.name}.part")
            _transfer(url, part, sha256)
            _check(url, part, sha256)
            os.replace(part, path)
            _beside(part).unlink(missing_ok=True)
    return path


def _transfer(url: str, part: Path, sha256: str | None) -> None:
    """Bring the whole file into `part`, in as many tries as it takes, at most TRIES without a byte of progress."""
    left, had = TRIES, -1
    while True:
        try:
            _once(url, part, resume=sha256 is not None)
        except _Broken as error:
            now = part.stat().st_size if part.exists() else 0
            left = TRIES if now > had >= 0 else left - 1
            had = now
            if left <= 0:
                raise RunnerError(
                    f"{url} could not be downloaded: {error}.", hint="Try again: what has arrived is kept."
                ) from error
            time.sleep(min(5.0, 0.2 * 2 ** (TRIES - left)))
        else:
            return


def _once(url: str, part: Path, *, resume: bool) -> None:
    """One request for what is missing of `part`. `resume` trusts the server to have the same file still."""
    have, version = _known(part)
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have and (version or resume):
        headers["Range"] = f"bytes={have}-"
        if version:
            headers["If-Range"] = version
    answer = _ask(url, part, headers)
    if answer is None:
        return
    with answer:
        start = have if answer.status == 206 else 0
        _continues(answer, part, start)
        total = _total(answer, start)
        _note(part, answer)
        _receive(answer, part, start, _Progress(place(url, Path()).name, total))
    if total is not None and part.stat().st_size != total:
        raise _Broken(f"{part.stat().st_size} of {total} bytes came")


def _ask(url: str, part: Path, headers: dict[str, str]) -> Any:
    """The server's answer, or None where `part` is whole already."""
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        _refused(url, part, error)
        return None
    except _TRANSPORT as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error or type(error).__name__
        raise _Broken(str(reason)) from error


def _receive(answer: Any, part: Path, start: int, progress: _Progress) -> None:
    with open(part, "r+b" if start else "wb") as sink:
        sink.seek(start)
        sink.truncate()
        while block := _read(answer):
            sink.write(block)
            progress.tell(sink.tell())
        sink.flush()
        os.fsync(sink.fileno())
        progress.tell(sink.tell(), last=True)


def _read(answer: Any) -> bytes:
    """The next block; only the network's errors end a try, the disk's go to the user."""
    try:
        return bytes(answer.read(_BLOCK))
    except http.client.IncompleteRead as error:
        raise _Broken("the connection ended early") from error
    except _TRANSPORT as error:
        raise _Broken(str(error) or type(error).__name__) from error


def _refused(url: str, part: Path, error: urllib.error.HTTPError) -> None:
    """A server's answer that is no file: try again, begin anew, or say it."""
    with error:
        if error.code == 416:  # nothing is left to send: all is there, or it is another file
            size = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if part.exists() and size == str(part.stat().st_size):
                return
            part.unlink(missing_ok=True)
            raise _Broken("the file there has changed")
        if error.code >= 500 or error.code in (408, 429):
            raise _Broken(f"the server answered {error.code}")
        raise ConfigurationError(
            f"{url} could not be downloaded: the server answered {error.code} {error.reason}.", every_rank=True
        )


def _continues(answer: Any, part: Path, start: int) -> None:
    """Raise _Broken, to begin anew, where the server sends another part of the file than what is missing."""
    told = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
    if start and told and int(told[1]) != start:
        part.unlink(missing_ok=True)
        raise _Broken("the server sent another part of the file than it was asked for")


def _total(answer: Any, start: int) -> int | None:
    """The size of the whole file, where the server says it."""
    length = answer.headers.get("Content-Length")
    return start + int(length) if length and length.isdigit() else None


def _known(part: Path) -> tuple[int, str | None]:
    """How much of the file is there, and of which version."""
    try:
        return part.stat().st_size, json.loads(_beside(part).read_bytes()).get("version")
    except (OSError, ValueError, AttributeError):
        return (part.stat().st_size if part.exists() else 0), None


def _note(part: Path, answer: Any) -> None:
    """Note which version of the file arrives, so that a later try does not add another's end to it."""
    tag = answer.headers.get("ETag")
    version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified")
    _beside(part).write_text(json.dumps({"version": version}))


def _beside(part: Path) -> Path:
    return part.with_suffix(".json")


def _check(url: str, part: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    found = digest(part)
    if found != sha256.lower():
        part.unlink()
        raise ConfigurationError(
            f"{url} is not the file that data.sums names: its SHA-256 is {found}.", every_rank=True
        )
