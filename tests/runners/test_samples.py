"""The order of samples: the same sequences in the same micro batches whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import prepare, quiet
from runners.errors import ConfigurationError
from runners.schema import Data, Parallel, RunConfig, Training

pytestmark = pytest.mark.train


class Numbered:
    """Samples whose tokens are their own number."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        return {"tokens": torch.full((2,), index), "labels": torch.full((2,), index + 1)}


def layout(replicas: int, micro: int, per_replica: int) -> RunConfig:
    return RunConfig(
        training=Training(
            micro_batch=micro,
            global_batch=micro * replicas * per_replica,
            parallel=Parallel(data=replicas),
        )
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_replicas_share_out_what_one_process_would_read(replicas: int, micro: int, per_replica: int) -> None:
    from runners.data.samples import micro_batches

    def read(config: RunConfig, replica: int) -> list[list[int]]:
        return [tokens[:, 0].tolist() for tokens, _labels in micro_batches(Numbered(), config, replica, 3)]

    split = layout(replicas, micro, per_replica)
    alone = read(layout(1, micro, per_replica * replicas), 0)
    shares = [read(split, replica) for replica in range(replicas)]
    assert [batch for turn in zip(*shares, strict=True) for batch in turn] == alone
    assert [sample for batch in alone for sample in batch] == list(range(3 * split.training.global_batch))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, prepare.Entry, Path]:
    quiet.silence()
    cache = tmp_path_factory.mktemp("cache")
    config = RunConfig(
        data=Data(source="synthetic", samples=12, tokenizer_vocab=300),
        training=Training(train_iters=4, sequence_length=32),
    )
    return config, prepare.ensure(config.data, cache)[0], cache


def test_samples_are_what_the_tokenizer_wrote(small: tuple[RunConfig, prepare.Entry, Path]) -> None:
    import numpy as np

    from runners.data import samples

    config, entry, cache = small
    dataset, validation = samples.datasets(config, entry, samples.index(config, entry, cache))
    stream = np.fromfile(f"{entry.prefix}.bin", dtype=np.uint16)
    assert len(dataset) >= 4 * config.training.global_batch
    assert validation is None
    end = (stream == 0).nonzero()[0]
    assert len(end) == 12  # one mark a document
    windows = {stream[i : i + 8].tobytes() for i in range(len(stream) - 8)}
    for index in range(8):
        sample = dataset[index]
        assert sample["tokens"].shape == sample["labels"].shape == (32,)
        assert sample["tokens"][1:].tolist() == sample["labels"][:-1].tolist()
        whole = sample["tokens"].numpy().astype(np.uint16)
        inside = [at for at in range(24) if 0 not in whole[at : at + 8]]
        assert inside
        assert all(whole[at : at + 8].tobytes() in windows for at in inside)


def test_the_index_is_built_once(
    small: tuple[RunConfig, prepare.Entry, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.data import samples

    config, entry, cache = small
    first = samples.index(config, entry, cache)
    monkeypatch.setattr(samples, "datasets", lambda *_: pytest.fail("built again"))
    assert samples.index(config, entry, cache) == first
    assert len(list(first.iterdir())) == 4


def test_too_little_text_for_one_sequence_is_refused(small: tuple[RunConfig, prepare.Entry, Path]) -> None:
    from runners.data import samples

    config, entry, cache = small
    long = config.model_copy(update={"training": Training(sequence_length=100_000)})
    with pytest.raises(ConfigurationError, match="less than one sequence of 100000"):
        samples.index(long, entry, cache)
    none = config.model_copy(update={"data": config.data.model_copy(update={"train_split": 0.01})})
    with pytest.raises(ConfigurationError, match="leaves 0 of 12 documents"):
        samples.index(none, entry, cache)
