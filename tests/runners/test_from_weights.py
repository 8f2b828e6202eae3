"""A training that begins with published weights and a published tokenizer, and ends with weights in their format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runners.data import corpus, quiet, tokenizer
from tests.runners.support import Place, Result

pytestmark = pytest.mark.train

quiet.silence()
SHAPE = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 300, "max_sequence": 96}
GPT = {**SHAPE, "architecture": "gpt", "norm_eps": 1e-5, "tied_embeddings": True}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in Hugging Face's layout, with a tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("published")
    shape: dict[str, Any] = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96}
    torch.manual_seed(7)
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    texts = [document.text for document in corpus.synthetic(20, 1)]
    tokenizer.trained(texts, 300).save(folder)
    return folder


def config(published: Path, **model: Any) -> dict[str, Any]:
    """Two steps so small that every weight stays what it was to six digits."""
    training = {
        "train_iters": 2,
        "sequence_length": 96,
        "micro_batch": 2,
        "global_batch": 4,
        "learning_rate": 1e-9,
        "min_learning_rate": 1e-9,
        "warmup_steps": 0,
        "checkpoint": {"export_hf": True},
    }
    data = {"source": "synthetic", "samples": 20, "tokenizer": str(published), "offline": True}
    return {"model": {**GPT, "weights": str(published), **model}, "training": training, "data": data}


@pytest.fixture(scope="module")
def trained(published: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Result]:
    folder = tmp_path_factory.mktemp("trained")
    place = Place(folder / "run", folder / "cache")
    return place, place.run(config(published), "stage=all")


def test_the_training_starts_from_the_weights_and_gives_them_back(
    published: Path, trained: tuple[Place, Result]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    place, result = trained
    assert result.rc == 0, result.err
    start = AutoModelForCausalLM.from_pretrained(published, local_files_only=True).eval()
    end = AutoModelForCausalLM.from_pretrained(place.out / "hf", local_files_only=True).eval()
    wanted, found = start.state_dict(), end.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
    assert any(not torch.equal(found[name], wanted[name]) for name in wanted)  # it was trained


def test_the_memory_was_estimated_before_the_model_was_built(trained: tuple[Place, Result]) -> None:
    _place, result = trained
    codes = [line["code"] for line in result.wires("diagnostic")]
    assert codes.index("memory") < codes.index("model")
    memory = result.diagnostic("memory")["data"]
    assert memory["capacity_by"] is None
    parameters = result.diagnostic("model")["data"]["parameters"]
    assert (memory["weights_by"], memory["optimizer_by"]) == (4 * parameters, 8 * parameters)


def test_the_arguments_say_which_architecture_it_was(trained: tuple[Place, Result]) -> None:
    _place, result = trained
    said = dict(re.findall(r"^  (\w+) \.+ (\S+)$", result.out, re.MULTILINE))
    assert said["normalization"] == "LayerNorm"
    assert said["position_embedding_type"] == "learned_absolute"
    assert (said["swiglu"], said["add_bias_linear"], said["max_position_embeddings"]) == ("False", "True", "96")


def test_another_model_than_the_folder_s_is_refused_by_its_key(
    published: Path, trained: tuple[Place, Result], tmp_path: Path
) -> None:
    place, result = trained
    assert result.rc == 0, result.err
    other = Place(tmp_path, place.cache).run(config(published, layers=3), "stage=train")
    assert other.rc == 2
    (line,) = other.err.strip().splitlines()
    assert "model.layers is 3, n_layer 2" in line
    assert other.stages == [("train", "start"), ("train", "failed")]
    assert json.loads((published / "config.json").read_text())["n_layer"] == 2
