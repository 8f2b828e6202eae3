"""Fixtures of the driver libraries; a conftest takes them in by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.nvml import GPM, NEW, build_nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libnvidia-ml.so.1 of a driver of today."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a driver from before the newer functions."""
    return build_nvml(tmp_path_factory.mktemp("old-nvml"), absent=(*NEW, *GPM, "FieldValues"))
