"""Ids of groups and runs: sortable by time, readable, unique enough to be typed by prefix."""

from __future__ import annotations

import re
import secrets
from datetime import datetime

_SAFE = re.compile(r"[^a-z0-9]+")


def slug(text: str, limit: int = 24) -> str:
    """`text` as it may stand in a file name: lower case letters, digits and hyphens."""
    return _SAFE.sub("-", text.lower()).strip("-")[:limit].strip("-") or "x"


def group_id(profile: str, now: datetime) -> str:
    """A new group's id, e.g. 20260131-093000-duel-local-4f2a."""
    return f"{now:%Y%m%d-%H%M%S}-{slug(profile)}-{secrets.token_hex(2)}"


def run_id(group: str, server: str, repeat: int, point: int = 0) -> str:
    """A run's id within its group, e.g. 20260131-093000-duel-local-4f2a.left.r1, with .pN at a sweep point."""
    tail = f".p{point}" if point else ""
    return f"{group}.{slug(server)}{tail}.r{repeat + 1}"
