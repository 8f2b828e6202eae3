"""The driver library, built once."""

from __future__ import annotations

from tests.fakes.fixtures import nvml_library

__all__ = ["nvml_library"]
