"""A small task and a new model, made on the spot: what runs where no hub is, and what tests train on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runners.data.prepare import locked, scratch
from runners.data.records import Record
from runners.errors import ConfigurationError, writing
from runners.schema import Model

DEMO = "demo"
MARKS = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_MADE = 1  # part of the folder's name: another recipe makes another folder


def demo() -> Iterator[Record]:
    """Sums up to 15 + 15 in the three shapes of a record: questions, prompts and plain sentences."""
    for first in range(16):
        for second in range(16):
            where, total = ("demo", first * 16 + second + 1), first + second
            if second % 3 == 0:
                asked = {"role": "user", "content": f"what is {first} plus {second}?"}
                yield Record(*where, messages=(asked, {"role": "assistant", "content": f"{total}"}))
            elif second % 3 == 1:
                yield Record(*where, prompt=f"{first} + {second} =", completion=f" {total}")
            else:
                yield Record(*where, text=f"{first} and {second} make {total}")


def folder(model: Model, texts: Iterable[str], vocab: int, seed: int, cache: Path) -> Path:
    """A model of random weights in `model`'s shape, with a tokenizer trained on `texts`, as Hugging Face lays it out.

    Made once in the cache, complete or absent, safe for many at once. Raises ConfigurationError for a shape that
    Llama and Qwen do not have or a vocabulary too small for the tokenizer, RunnerError where the disk refuses.
    """
    if model.architecture != "llama":
        raise ConfigurationError(
            f"model.name={model.name} is no Llama: the lora runner makes new models of that shape only.",
            hint="Say runner.model or runner.model_local_dir, or take another model.",
            every_rank=True,
        )
    kept = list(texts)
    read = hashlib.sha256("\0".join(kept).encode()).hexdigest()
    made_of = [_MADE, model.model_dump(mode="json"), vocab, seed, read]
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    place = cache / "models"
    if (place / key).is_dir():
        return place / key
    with writing(f"the cache {cache}"), locked(place, key):
        if not (place / key).is_dir():
            part = scratch(place, key)
            try:
                _make(model, kept, vocab, seed, part)
                os.rename(part, place / key)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return place / key


def _make(model: Model, texts: list[str], vocab: int, seed: int, into: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = _tokenizer(texts, vocab)
    size = max(len(tokenizer), model.vocab or 0)
    if model.vocab is not None and model.vocab < len(tokenizer):
        raise ConfigurationError(
            f"model.vocab={model.vocab} is smaller than the tokenizer's {len(tokenizer)} tokens.",
            hint="Set model.vocab to null, or a smaller data.tokenizer_vocab.",
            every_rank=True,
        )
    tokenizer.save_pretrained(str(into))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(_config(model, size, tokenizer), dtype=torch.float32)
    made.save_pretrained(str(into))


def _tokenizer(texts: list[str], vocab: int) -> Any:
    from transformers import PreTrainedTokenizerFast

    from runners.data.tokenizer import END_OF_TEXT, trained

    backend = trained(texts, vocab - len(MARKS)).backend
    backend.encode_special_tokens = False  # the template's own marks are marks
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        extra_special_tokens=list(MARKS),
    )
    made.chat_template = CHAT
    return made


def _config(model: Model, vocab: int, tokenizer: Any) -> Any:
    from transformers import LlamaConfig, Qwen2Config

    kind = Qwen2Config if model.qkv_bias else LlamaConfig
    return kind(
        vocab_size=vocab,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        rms_norm_eps=model.norm_eps,
        rope_parameters=_rope(model),
        max_position_embeddings=model.max_sequence or 131072,
        tie_word_embeddings=model.tied_embeddings,
        initializer_range=model.hidden**-0.5,  # so that frozen layers pass on what adapters can steer
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


def _rope(model: Model) -> dict[str, Any]:
    """The rotary positions as a Hugging Face configuration says them."""
    scaling = model.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rope_base}
    return {
        "rope_type": "llama3",
        "rope_theta": model.rope_base,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_sequence,
    }
