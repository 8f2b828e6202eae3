"""A model's config.json in Hugging Face's words, and model.* in ours; where its folder is. Neither torch nor
transformers are needed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners import hub
from runners.errors import ConfigurationError
from runners.schema import Model, RunConfig

CONFIG = "config.json"
_HINT = "Choose the model profile that belongs to these weights, or set the key as config.json has it."
# model.* key -> the names that config.json may use, by its model_type.
_LLAMA = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "norm_eps": "rms_norm_eps",
}
_GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "kv_heads": "n_head",
    "ffn": "n_inner",
    "vocab": "vocab_size",
    "max_sequence": "n_positions",
    "norm_eps": "layer_norm_epsilon",
}
_KINDS = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen2_5_vl": _LLAMA, "qwen2_5_vl_text": _LLAMA, "gpt2": _GPT2}
# What transformers takes where config.json leaves a key out, which older files do.
_DEFAULTS: dict[str, Any] = {"tie_word_embeddings": False, "rope_theta": 10000.0}
_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # one formula, computed in three ways


def fetch(config: RunConfig, *, here: bool = False) -> Path | None:
    """The folder of model.weights, downloaded where it must be and may be; None for random weights.

    `here` takes it from this machine only: another process of it has fetched it already. Raises ConfigurationError
    for what cannot be had and for another model than model.* says.
    """
    if config.model.weights is None:
        return None
    folder = hub.folder(
        config.model.weights,
        key="model.weights",
        revision=config.model.revision,
        offline=here or config.data.offline,
        patterns=hub.WEIGHTS,
    )
    check(config.model, read(folder), folder)
    return folder


@dataclass(frozen=True)
class Said:
    """One key as config.json has it: our key, its value, and the name that it stands under there."""

    key: str
    value: Any
    name: str


def read(folder: Path, key: str = "model.weights") -> dict[str, Any]:
    """config.json of `folder`; ConfigurationError where it is missing or is none."""
    try:
        told = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"{key}: {folder} lacks {CONFIG}.", every_rank=True) from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{key}: {folder / CONFIG} cannot be read: {error}.", every_rank=True) from error
    if not isinstance(told, dict):
        raise ConfigurationError(f"{key}: {folder / CONFIG} is no JSON object.", every_rank=True)
    text = told.get("text_config")  # a vision-language model keeps its text part there, or all of it on top
    return {**told, **text} if isinstance(text, dict) else told


def check(model: Model, told: dict[str, Any], folder: Path) -> None:
    """Raise ConfigurationError that names each key of `model` that is not as config.json (`told`) has it."""
    kind = told.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigurationError(
            f"model.weights: {folder} holds a model of type {kind!r}, which this runner does not train.",
            hint=f"It trains {', '.join(sorted(_KINDS))}.",
            every_rank=True,
        )
    ours = {**model.model_dump(), "head_size": model.hidden // model.heads}
    try:
        wrong = [said for said in facts(told) if not _same(ours[said.key], said.value)]
    except (TypeError, AttributeError) as error:  # a list, or a text, where a number or an object should be
        raise ConfigurationError(
            f"model.weights: {folder / CONFIG} is not as published ones are: {error}.", every_rank=True
        ) from error
    if wrong:
        told_all = "; ".join(f"model.{s.key} is {_shown(ours[s.key])}, {s.name} {_shown(s.value)}" for s in wrong)
        raise ConfigurationError(
            f"model.* is not the model in {folder}: {told_all}.",
            hint=_HINT,
            every_rank=True,
        )


def facts(told: dict[str, Any]) -> list[Said]:
    """What config.json says of a model, in our keys."""
    kind = str(told["model_type"])
    gpt = kind == "gpt2"
    found = [Said("architecture", "gpt" if gpt else "llama", "model_type")]
    for key, name in _KINDS[kind].items():
        value = told.get(name)
        if key == "kv_heads" and value is None:
            value = told.get("num_attention_heads")
        if key == "ffn" and value is None and gpt:
            value = 4 * told.get("n_embd", 0)
        if value is not None:
            found.append(Said(key, value, name))
    tied = told.get("tie_word_embeddings", True if gpt else _DEFAULTS["tie_word_embeddings"])
    found.append(Said("tied_embeddings", tied, "tie_word_embeddings"))
    if gpt:
        _only(told, "activation_function", _GELU, "gelu_new")
        return found
    _only(told, "hidden_act", ("silu", "swish"), "silu")
    if told.get("head_dim") is not None:
        found.append(Said("head_size", told["head_dim"], "head_dim"))
    bias = bool(told.get("attention_bias")) if kind == "llama" else True
    return [*found, Said("qkv_bias", bias, "attention_bias" if kind == "llama" else "model_type"), *_rope(told)]


def _rope(told: dict[str, Any]) -> list[Said]:
    """The rotary base and its stretching: on top (the published files) or in rope_parameters (transformers 5)."""
    scaling = told.get("rope_parameters") or told.get("rope_scaling") or {}
    base = scaling.get("rope_theta", told.get("rope_theta", _DEFAULTS["rope_theta"]))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "mrope", "llama3"):  # mrope gives text its usual positions
        raise ConfigurationError(
            f"model.weights: rotary positions of type {kind!r} are not supported.",
            hint="This runner knows plain ones and Llama 3's.",
            every_rank=True,
        )
    stretched = None
    if kind == "llama3":
        stretched = {
            "factor": scaling.get("factor"),
            "low_freq_factor": scaling.get("low_freq_factor"),
            "high_freq_factor": scaling.get("high_freq_factor"),
            "original_sequence": scaling.get("original_max_position_embeddings"),
        }
    return [Said("rope_base", base, "rope_theta"), Said("rope_scaling", stretched, "rope_scaling")]


def _only(told: dict[str, Any], name: str, allowed: tuple[str, ...], default: str) -> None:
    value = told.get(name, default)
    if value not in allowed:
        raise ConfigurationError(
            f"model.weights: config.json's {name} is {value!r}, this runner computes {default}.", every_rank=True
        )


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return abs(ours - theirs) <= 1e-9 * abs(ours)
    return bool(ours == theirs)


def _shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, float) else f"{value:g}"


def written(model: Model, vocab: int, dtype: str, sequence: int) -> dict[str, Any]:
    """config.json of a trained `model` with `vocab` tokens, as the published files have it; `dtype` as "bfloat16".

    `sequence` stands for the longest one where the model has no bound.
    """
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        **dict.fromkeys(("bos_token_id", "eos_token_id")),  # the tokenizer knows them
    }
    if model.architecture == "gpt":
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **{name: getattr(model, key) for key, name in _GPT2.items() if key != "vocab"},
            "activation_function": "gelu_pytorch_tanh",
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
            **common,
        }
    qwen = model.qkv_bias
    found = {
        "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen2" if qwen else "llama",
        **{name: getattr(model, key) for key, name in _LLAMA.items() if key != "vocab"},
        "hidden_act": "silu",
        "max_position_embeddings": model.max_sequence or sequence,
        "rope_theta": model.rope_base,
        "rope_scaling": _written_scaling(model),
        **common,
    }
    return found if qwen else {**found, "attention_bias": False, "mlp_bias": False}


def _written_scaling(model: Model) -> dict[str, Any] | None:
    scaling = model.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_sequence,
    }
