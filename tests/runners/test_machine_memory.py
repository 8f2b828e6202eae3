"""A training on the CPU that the whole machine has no room for."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from runners.errors import ConfigurationError  # noqa: E402
from runners.megatron import memory  # noqa: E402
from runners.schema import RunConfig  # noqa: E402


def test_a_model_beyond_the_machines_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    config, pages = RunConfig(), {"SC_PHYS_PAGES": 1 << 23, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    memory.check(config, 320, torch.device("cpu"), speak=False)
    pages["SC_PHYS_PAGES"] = 1 << 10
    with pytest.raises(ConfigurationError, match=r"on the fullest process .*; this machine has 0\.0 GiB\. Take a sm"):
        memory.check(config, 320, torch.device("cpu"), speak=False)
