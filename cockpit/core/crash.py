"""What is left of an internal error: a short message, and a file without locals or secrets."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from cockpit.core.text import printable

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"\b(hf|ghp|gho|github_pat|glpat|sk|xox[abp])[_-][A-Za-z0-9_-]{8,}"), "***"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"), r"\1 ***"),
    (re.compile(r"(://[^/\s:@]+):[^/\s@]+@"), r"\1:***@"),
    (
        re.compile(
            r"(?i)\b([\w-]*(?:token(?!s|iz)|secret|passw(?:or)?d|api_?key)[\w-]*['\"]?\s*[=:]\s*)['\"]?[^\s'\",)]+"
        ),
        r"\1***",
    ),
)
_SHORTEST = 6  # characters of a value in the environment that is taken for a secret
_concealed: set[str] = set()


def conceal(value: str) -> None:
    """Take `value`, a secret that was read, out of whatever `redact` sees from now on, whatever it looks like."""
    _concealed.update(v for v in (value, repr(value)[1:-1], json.dumps(value)[1:-1]) if v)


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` without secrets that were read, and without what looks like one.

    That are values of variables with such names, tokens, and passwords in addresses.
    """
    values = (os.environ if environment is None else environment).items()
    secrets = {v for k, v in values if _SECRET_NAME.search(k) and len(v) >= _SHORTEST}
    for secret in sorted(secrets | _concealed, key=len, reverse=True):
        text = text.replace(secret, "***")
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def state_folder() -> Path:
    """The user's folder for what is neither configuration nor data."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ekvi-cockpit"


def write_report(error: BaseException) -> Path | None:
    """Write the traceback, redacted and without locals, to a file of mode 0600; None where that cannot be done."""
    text = redact("".join(traceback.format_exception(error)))
    try:
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def message(error: BaseException, path: Path | None, group: str | None = None, *, what: str = "the screen") -> str:
    """What is printed instead of a traceback; `what` broke off, `group` goes on without it."""
    first = redact(str(error)).strip().splitlines()
    text = (
        f"ekvi-cockpit: {what} broke off ({type(error).__name__}{': ' + printable(first[0][:200]) if first else ''})."
    )
    if group:
        text += f"\nThe group goes on without it: `ekvi-cockpit attach {group}` follows it."
    return text + (f"\nDetails, without secrets: {path}" if path else "") + "\n"
