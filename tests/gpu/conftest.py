"""The driver libraries, built once."""

from __future__ import annotations

from tests.fakes.fixtures import nvml_library, old_nvml_library
from tests.gpu.amd_fixtures import opened, tree

__all__ = ["nvml_library", "old_nvml_library", "opened", "tree"]
