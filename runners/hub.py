"""A name that the user gives, a repo id of the Hugging Face hub or a local folder, to a local folder.

huggingface_hub does the transfer and resumes a broken one. What its errors mean is said here in one sentence each.
The token is the library's to find (HF_TOKEN, or the file that HF_TOKEN_PATH names) and is never printed.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runners import wire
from runners.errors import ConfigurationError, RunnerError, require

TOKENIZER = (
    "tokenizer*",
    "chat_template*",
    "*vocab*",
    "*merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*config.json",
)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
PROGRESS_S = 5.0  # between two lines about one download
_TRUE = {"1", "ON", "YES", "TRUE"}  # what the library takes for true
_TRANSPORT = ("httpx", "httpx2", "httpcore", "requests", "urllib3", "hf_xet")  # whose errors mean the network
_REPO = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


def local(name: str) -> bool:
    """Whether `name` is a path and not a repo id: written as one, or a folder that is here."""
    return name.startswith(("/", ".", "~")) or os.path.isdir(name)


def without_network(asked: bool = False) -> bool:
    """Whether the network is not to be asked: by configuration, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE."""
    told = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return asked or any(value.upper() in _TRUE for value in told)


def folder(
    name: str,
    *,
    key: str,
    revision: str | None = None,
    offline: bool = False,
    patterns: Sequence[str] | None = None,
    dataset: bool = False,
) -> Path:
    """The local folder that holds what of `name` matches `patterns` (None: everything), downloaded where it must be.

    `key` is the configuration's key, for the errors. Several processes may call it at once: the library locks each
    file. Raises ConfigurationError for what the user can mend, RunnerError for a network that does not carry.
    """
    if local(name):
        return _here(name, key)
    if not _REPO.fullmatch(name):
        raise ConfigurationError(
            f"{key}={name} is neither a folder nor a repo id (ORGANISATION/NAME).", every_rank=True
        )
    require("huggingface_hub")
    from huggingface_hub import snapshot_download

    away = without_network(offline)
    with explained(name, key=key, revision=revision, offline=away):
        found = snapshot_download(
            name,
            repo_type="dataset" if dataset else "model",
            revision=revision,
            allow_patterns=list(patterns) if patterns is not None else None,
            local_files_only=away,
            token=token(),
            tqdm_class=_progress(name),
        )
    return Path(found)


def token() -> str | None:
    """The token under the one name that the library does not read itself; None leaves the search to the library."""
    from huggingface_hub import get_token

    return None if get_token() else os.environ.get("HUGGINGFACE_HUB_TOKEN") or None


@contextmanager
def explained(name: str, *, key: str, revision: str | None = None, offline: bool = False) -> Iterator[None]:
    """Turn what huggingface_hub raises into one sentence about `name`, the value of `key`, and its mend."""
    import huggingface_hub.errors as hub

    told = f"{key}={name}" + (f" (revision {revision})" if revision else "")
    try:
        yield
    except hub.HFValidationError as error:
        raise ConfigurationError(f"{told} is no repo id: {_line(error)}.", every_rank=True) from error
    except hub.RevisionNotFoundError as error:
        raise ConfigurationError(
            f"{told}: the hub has no such revision of it.", hint="Name a branch, a tag or a commit.", every_rank=True
        ) from error
    except (hub.HfHubHTTPError, hub.LocalEntryNotFoundError) as error:
        status = _status(error)
        if status in (401, 403, 404):
            raise _refused(told, status, key) from error
        if status is None and offline:
            raise _absent(told, error, key) from error
        raise _broken(told, _reason(error, status)) from error
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _TRANSPORT:
            raise
        raise _broken(told, getattr(error, "strerror", None) or _line(error)) from error


def _here(name: str, key: str) -> Path:
    path = Path(os.path.expanduser(name)).absolute()
    if path.is_dir():
        return path
    what = "is a file, not a folder" if path.is_file() else "is not there"
    raise ConfigurationError(f"{key}: the folder {path} {what}.", every_rank=True)


def _broken(told: str, why: str) -> RunnerError:
    return RunnerError(
        f"{told} could not be downloaded: {why}.",
        hint="Try again: what has arrived is kept. Or name a local folder.",
        every_rank=True,
    )


def _refused(told: str, status: int, key: str) -> ConfigurationError:
    """The hub's 401, 403 or 404. Without a token it says 401 of what does not exist and of what is gated alike."""
    from huggingface_hub import get_token

    known = bool(get_token() or os.environ.get("HUGGINGFACE_HUB_TOKEN"))
    if status == 404:
        message, hint = f"{told}: the hub has no such repo, or your token does not show it.", "Check its name."
    elif known:
        message = f"{told} is gated or private, and the token of this run has no access to it (HTTP {status})."
        hint = "Accept its licence on its page with the token's account, or name a local folder."
    else:
        message = f"{told} is gated, private or not there, and this run has no token (HTTP {status})."
        hint = f"Accept its licence on its page and set the secret HF_TOKEN, or name a local folder in {key}."
    return ConfigurationError(message, hint=hint, every_rank=True)


def _absent(told: str, error: Exception, key: str) -> ConfigurationError:
    """Offline, and the cache does not hold all of it."""
    from huggingface_hub import constants

    listed = re.search(r"file\(s\) are missing \((.*?)\)\. ", str(error))
    what = f"lacks {listed[1]}" if listed else "does not hold it"
    return ConfigurationError(
        f"{told}: offline mode is on, and the cache {constants.HF_HUB_CACHE} {what}.",
        hint=f"Download it once without offline mode, or name a local folder in {key}.",
        every_rank=True,
    )


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of an error or of what caused it."""
    while error is not None:
        found = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(found, int):
            return found
        error = error.__cause__
    return None


def _reason(error: BaseException, status: int | None) -> str:
    if status is not None:
        return f"the hub answered {status}"
    while error.__cause__ is not None:
        error = error.__cause__
    return f"the hub cannot be reached ({_line(error)})"


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _progress(name: str) -> Any:
    """A progress bar for the library that speaks in wire lines, every few seconds and once at the end."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        """One bar of a download; the one that counts bytes is told."""

        monitor_interval = 0  # no thread that watches the bar

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            self.said, self.ended = time.monotonic(), False
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False, "leave": False})

        def display(self, *_args: Any, **_options: Any) -> None:
            """Say how far it is, where it is time, and once that all is there."""
            ended = "complete" in (self.desc or "") and self.n > 0
            if not self.ended and (ended or time.monotonic() - self.said >= PROGRESS_S):
                self.ended = ended
                self.tell()

        def close(self) -> None:
            """Without a word: the library leaves its bars to the garbage collector."""
            self.ended = True
            super().close()

        def tell(self) -> None:
            """One wire line, for the bar of the bytes that came over the network."""
            self.said = time.monotonic()
            if self.unit != "B" or "econstruct" in (self.desc or ""):
                return
            done, total = int(self.n), int(self.total or 0)
            share = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
            wire.emit(
                "diagnostic",
                level="info",
                code="download",
                message=f"{name}: {share}",
                data={"name": name, "done_by": done, "total_by": total or None},
            )

    return Bar
