"""config.json against model.*: published files fit their profiles, and every difference is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from runners import huggingface
from runners.errors import ConfigurationError
from runners.schema import Model

PROFILES = Path(__file__).parents[2] / "profiles" / "model"
STRETCHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def sizes(layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, eps: float) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "rms_norm_eps": eps,
        "hidden_act": "silu",
    }


QWEN = {"model_type": "qwen2", **sizes(28, 3584, 28, 4, 18944, 152064, 1e-6), "rope_theta": 1000000.0}
LLAMA_1B: dict[str, Any] = {
    "model_type": "llama",
    **sizes(16, 2048, 32, 8, 8192, 128256, 1e-5),
    "head_dim": 64,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, **STRETCHED},
}
# What decides the model in the config.json files as they were published, and one that transformers 5 wrote.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3.1 8b": (
        "llama31_8b",
        {
            "model_type": "llama",
            **sizes(32, 4096, 32, 8, 14336, 128256, 1e-5),
            "tie_word_embeddings": False,
            "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **STRETCHED},
        },
    ),
    "llama 3.2 1b": ("llama32_1b", LLAMA_1B),
    "llama 3.2 3b as transformers 5 writes it": (
        "llama32_3b",
        {
            "model_type": "llama",
            **sizes(28, 3072, 24, 8, 8192, 128256, 1e-5),
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, **STRETCHED},
        },
    ),
    "llama 2 70b": (
        "llama2_70b",
        {"model_type": "llama", **sizes(80, 8192, 64, 8, 28672, 32000, 1e-5), "rope_scaling": None},
    ),
    "qwen 2.5 7b": ("qwen2_5_7b", QWEN),
    "qwen 2.5 vl 7b": (
        "qwen2_5vl_7b",
        {**QWEN, "model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    ),
    "qwen 2.5 vl 7b with its text apart": (
        "qwen2_5vl_7b",
        {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": {**QWEN, "model_type": "qwen2_5_vl_text"}},
    ),
}


def profile(name: str, **changes: Any) -> Model:
    told = OmegaConf.to_container(OmegaConf.load(PROFILES / f"{name}.yaml"))
    assert isinstance(told, dict)
    return Model.model_validate({**told, **changes})


def read(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(told))
    return huggingface.read(folder)


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_profile_is_the_model_that_was_published(case: str, tmp_path: Path) -> None:
    name, told = PUBLISHED[case]
    huggingface.check(profile(name), read(tmp_path, told), tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layers": 32}, "model.layers is 32, num_hidden_layers 16"),
        ({"kv_heads": 32}, "model.kv_heads is 32, num_key_value_heads 8"),
        ({"heads": 16}, "model.head_size is 128, head_dim 64"),
        ({"vocab": None}, "model.vocab is null, vocab_size 128256"),
        ({"norm_eps": 1e-6}, "model.norm_eps is 1e-06, rms_norm_eps 1e-05"),
        ({"rope_base": 10000.0}, "model.rope_base is 10000, rope_theta 500000"),
        ({"rope_scaling": None}, "model.rope_scaling is null, rope_scaling {"),
        ({"tied_embeddings": False}, "model.tied_embeddings is false, tie_word_embeddings true"),
        ({"qkv_bias": True}, "model.qkv_bias is true, attention_bias false"),
        ({"architecture": "gpt", "rope_scaling": None}, 'model.architecture is "gpt", model_type "llama"'),
    ],
)
def test_each_key_that_differs_is_named_with_both_values(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        huggingface.check(profile("llama32_1b", **change), read(tmp_path, LLAMA_1B), tmp_path)
    assert told in refused.value.message
    assert str(tmp_path) in refused.value.message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "a model of type 'mamba', which this runner does not train"),
        ({"model_type": ["llama"]}, r"a model of type \['llama'\], which"),
        (
            {"rope_parameters": None, "rope_scaling": "llama3"},
            r"config\.json is not as published ones are: 'str' object",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', this runner computes silu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary positions of type 'yarn'"),
    ],
)
def test_what_this_runner_does_not_compute_is_refused(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=told):
        huggingface.check(profile("llama32_1b"), read(tmp_path, {**LLAMA_1B, **change}), tmp_path)


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_config_json_that_is_none_is_one_sentence(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        huggingface.read(tmp_path)


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.yaml")))
def test_what_is_written_of_a_model_is_that_model(name: str, tmp_path: Path) -> None:
    model = profile(name)
    vocab = model.vocab or 1000
    told = read(tmp_path, huggingface.written(model, vocab, "bfloat16", 128))
    huggingface.check(model.model_copy(update={"vocab": vocab}), told, tmp_path)
    assert told["torch_dtype"] == "bfloat16"
