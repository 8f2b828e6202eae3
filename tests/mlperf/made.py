"""Small data in the layout of the task's data set: parquet files of tokens and labels, and a model's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

Row = tuple[list[int], list[int]]


def rows(count: int, sequence: int, seed: int, vocab: int = 16, masked: int = 4) -> list[Row]:
    """Sequences that count upwards from a random token, over and over; the first `masked` tokens do not count."""
    starts = np.random.default_rng(seed).integers(0, vocab, count)
    made = []
    for start in starts:
        tokens = ((int(start) + np.arange(sequence)) % vocab).tolist()
        made.append((tokens, [-100] * masked + tokens[masked:]))
    return made


def table(path: Path, made: Sequence[Row], columns: Sequence[str] = ("input_ids", "labels")) -> None:
    """Write a parquet file as the data set's are: lists of int32 and int64, and an attention mask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "input_ids": pyarrow.array([r[0] for r in made], pyarrow.list_(pyarrow.int32())),
        "attention_mask": pyarrow.array([[1] * len(r[0]) for r in made], pyarrow.list_(pyarrow.int8())),
        "labels": pyarrow.array([r[1] for r in made], pyarrow.list_(pyarrow.int64())),
    }
    parquet.write_table(pyarrow.table({k: v for k, v in found.items() if k in (*columns, "attention_mask")}), path)


def folder(at: Path, train: Sequence[Row], validation: Sequence[Row], shards: int = 1) -> Path:
    """The data set's folder, its training split in `shards` files."""
    for index in range(shards):
        part = train[index * len(train) // shards : (index + 1) * len(train) // shards]
        table(at / "data" / f"train-{index:05}-of-{shards:05}.parquet", part)
    table(at / "data" / "validation-00000-of-00001.parquet", validation)
    return at


def model(at: Path, sequence: int, vocab: int = 16) -> Path:
    """A small Llama's folder with random weights, as transformers writes one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=sequence,
        initializer_range=0.4,  # frozen logits as small as usual could say nothing
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(at)
    return at


def fuse(plain: Path, at: Path) -> Path:
    """The same model as the task's checkpoint has it: one matrix for query, key and value, code of its own named."""
    import torch
    from safetensors.torch import load_file, save_file

    found = load_file(plain / "model.safetensors")
    fused = {k: v for k, v in found.items() if not any(f".{x}_proj." in k for x in "qkv")}
    for name in [k for k in found if ".q_proj." in k]:
        parts = [found[name.replace("q_proj", f"{x}_proj")] for x in "qkv"]
        fused[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
    at.mkdir(parents=True)
    save_file(fused, at / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"model_type": "custom_llama", "rope_theta": rope["rope_theta"], "rope_scaling": None}
    config |= {"architectures": ["CustomLlamaForCausalLM"], "transformers_version": "4.37.2"}
    config["auto_map"] = {
        "AutoConfig": "modeling_llama.CustomLlamaConfig",
        "AutoModelForCausalLM": "modeling_llama.CustomLlamaForCausalLM",
    }
    (at / "config.json").write_text(json.dumps(config))
    (at / "modeling_llama.py").write_text("raise SystemExit('code of a model was run')\n")
    return at
