"""The task's checkpoint, whose query, key and value are one matrix, without the code that it brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.lora import fused
from runners.schema import LoraRunner
from tests.mlperf import made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    at = tmp_path_factory.mktemp("models")
    plain = made.model(at / "plain", 64)
    return plain, made.fuse(plain, at / "fused")


def load(folder: Path, targets: tuple[str, ...]) -> Any:
    from runners.lora.model import adapted, load

    runner = LoraRunner(target_modules=targets, r=4, seq_len=64)
    return adapted(load(runner, folder, "cpu"), runner)


def test_only_its_own_kind_is_taken(folders: tuple[Path, Path], tmp_path: Path) -> None:
    plain, own = folders
    assert fused.register(own)
    assert not fused.register(plain)
    assert not fused.register(tmp_path)
    (tmp_path / "config.json").write_text("[")
    assert not fused.register(tmp_path)


def test_it_computes_what_the_three_matrices_do(folders: tuple[Path, Path]) -> None:
    plain, own = (load(folder, ("o_proj",)) for folder in folders)
    ids = torch.randint(0, 16, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(plain(ids).logits, own(ids).logits)


def test_one_adapter_stands_beside_the_whole_matrix(folders: tuple[Path, Path]) -> None:
    core = load(folders[1], ("qkv_proj", "o_proj"))
    shapes = {tuple(p.shape) for name, p in core.named_parameters() if "qkv_proj.lora" in name}
    assert shapes == {(4, 32), (64, 4)}  # 4 query heads, 2 of key and 2 of value, 8 wide each
