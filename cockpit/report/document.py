"""A document as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def as_json(document: Mapping[str, Any]) -> str:
    """`document` as one JSON text with a newline at its end; raises ValueError on NaN or infinity."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
