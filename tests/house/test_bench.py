"""`make bench` calls `measure()` of every module beside it: one without would end it halfway."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.bench.__main__ import modules


@pytest.mark.parametrize("name", modules([]))
def test_every_bench_can_be_measured(name: str) -> None:
    measure = importlib.import_module(f"tests.bench.{name}").measure
    assert not inspect.signature(measure).parameters
