"""Hugging Face's weights in our model: the same logits, to the last bit, whatever the parallel layout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.data import quiet
from runners.errors import ConfigurationError
from runners.schema import Model, RunConfig
from tests.runners.support import ROOT, TIMEOUT_S

pytestmark = pytest.mark.train

quiet.silence()
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPE = {"layers": 2, "hidden": 128, "heads": 8, "kv_heads": 4, "ffn": 352, "max_sequence": 256}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        **SHAPE,
        "vocab": 256,
        "rope_base": 500000.0,
        "rope_scaling": {**SCALING, "original_sequence": 32},
        "norm_eps": 1e-5,
    },
    "qwen": {**SHAPE, "vocab": 256, "rope_base": 1000000.0, "norm_eps": 1e-6, "qkv_bias": True},
    "llama-tied-padded": {**SHAPE, "vocab": 250, "norm_eps": 1e-5, "tied_embeddings": True},
    "gpt-tied": {
        **SHAPE,
        "architecture": "gpt",
        "kv_heads": 8,
        "ffn": 512,
        "vocab": 256,
        "norm_eps": 1e-5,
        "tied_embeddings": True,
    },
}


def published(name: str) -> Any:
    """A tiny random model of transformers' own, norms and biases shaken too."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    keys = MODELS[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    common = {"vocab_size": keys["vocab"], "tie_word_embeddings": keys.get("tied_embeddings", False)}
    llama: dict[str, Any] = {
        **common,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "rms_norm_eps": keys["norm_eps"],
    }
    model: Any
    if name == "qwen":
        model = Qwen2ForCausalLM(Qwen2Config(**llama | {"rope_theta": 1000000.0}))
    elif name == "gpt-tied":
        gpt: dict[str, Any] = {"n_embd": 128, "n_layer": 2, "n_head": 8, "n_positions": 256}
        model = GPT2LMHeadModel(GPT2Config(**common, **gpt, activation_function="gelu_pytorch_tanh"))
    elif name == "llama":
        scaling = {**SCALING, "rope_type": "llama3", "original_max_position_embeddings": 32}
        model = LlamaForCausalLM(LlamaConfig(**llama | {"rope_theta": 500000.0, "rope_scaling": scaling}))
    else:
        model = LlamaForCausalLM(LlamaConfig(**llama))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def run(work: Path) -> None:
    """Our logits, in all layouts, beside the reference's."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, "-m", "tests.runners.logits", str(work)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a model, with the reference's logits and ours."""
    import torch

    folder = tmp_path_factory.mktemp("models")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, keys in MODELS.items():
        model = published(name)
        # qwen in several files with an index, the others in one
        model.save_pretrained(folder / name, max_shard_size="300KB" if name == "qwen" else "1GB")
        (folder / name / "model.json").write_text(json.dumps(keys))
        tokens = torch.randint(0, keys["vocab"], (2, 64))
        np.save(folder / name / "tokens.npy", tokens.numpy())
        with torch.no_grad():
            np.save(folder / name / "reference.npy", model(tokens).logits.numpy())
    torch.set_num_threads(threads)
    run(folder)
    return folder


def logits(work: Path, model: str, which: str) -> Any:
    found = np.load(work / model / f"{which}.npy")
    vocab = MODELS[model]["vocab"]
    assert not found[..., vocab:].any()  # the padding's rows are zero
    return found[..., :vocab]


@pytest.mark.parametrize("model", ["llama", "qwen"])
def test_the_logits_are_the_reference_s_to_the_last_bit(work: Path, model: str) -> None:
    reference = logits(work, model, "reference")
    assert np.abs(reference).max() > 1
    assert np.array_equal(logits(work, model, "logits"), reference)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("which", ["logits", "logits.tensor0", "logits.tensor1", "logits.pipeline"])
def test_every_layout_and_padding_gives_the_reference_s_logits(work: Path, model: str, which: str) -> None:
    if which == "logits.pipeline" and "tied" in model:
        return  # that pair is refused on the CPU
    assert np.allclose(logits(work, model, which), logits(work, model, "reference"), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_exported_is_what_was_loaded(work: Path, model: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = work / model / "export"
    read = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    original = AutoModelForCausalLM.from_pretrained(work / model, local_files_only=True)
    wanted, found = original.state_dict(), read.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert type(read) is type(original)
    tokens = torch.from_numpy(np.load(work / model / "tokens.npy"))
    with torch.no_grad():
        assert torch.equal(read.eval()(tokens).logits, original.eval()(tokens).logits)


def source(folder: Path, name: str, padded: int = 256, **changes: Any) -> Any:
    from runners.megatron.weights import Source

    return Source(folder, Model.model_validate({**MODELS[name], **changes}), padded)


def copied(work: Path, name: str, target: Path) -> Path:
    files = [path for path in (work / name).iterdir() if path.is_file()]
    for path in files:
        shutil.copy(path, target)
    return target


def test_a_missing_file_of_the_index_is_named(work: Path, tmp_path: Path) -> None:
    folder = copied(work, "qwen", tmp_path)
    gone = sorted(folder.glob("model-*.safetensors"))[2]
    gone.unlink()
    held = source(folder, "qwen")
    with pytest.raises(ConfigurationError, match=f"lacks {gone.name}, which its index lists"):
        [held.part(name, 0, 1) for name in everything("qwen")]


def test_a_file_cut_short_is_named(work: Path, tmp_path: Path) -> None:
    folder = copied(work, "llama", tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ConfigurationError, match=r"model\.safetensors cannot be read"):
        source(folder, "llama")


def test_a_folder_without_safetensors_says_what_it_needs(work: Path, tmp_path: Path) -> None:
    folder = copied(work, "llama", tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=r"holds no safetensors\. It needs model\.safetensors"):
        source(folder, "llama")


def test_missing_and_unexpected_tensors_are_named(work: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied(work, "llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"lacks model\.norm\.weight\."):
        source(folder, "llama")
    odd = {f"model.layers.{i}.self_attn.q_norm.weight": norm.clone() for i in range(5)}
    save_file({**tensors, "model.norm.weight": norm, **odd}, folder / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"no place for: model\.layers\.0\..* and 2 more"):
        source(folder, "llama")


def test_a_tensor_of_another_shape_is_named_with_both(work: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied(work, "llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name][:350].clone()}, folder / "model.safetensors")
    held = source(folder, "llama")
    with pytest.raises(ConfigurationError, match=rf"{name} in .* is 350 x 128, but model\.\* asks for 352"):
        held.part("decoder.layers.1.mlp.linear_fc1.weight", 0, 1)


def test_constants_of_old_files_and_a_picture_s_tower_are_no_weights(work: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied(work, "llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": tensors["model.norm.weight"].clone()}
    extra["visual.blocks.0.attn.qkv.weight"] = tensors["model.norm.weight"].clone()
    save_file({**tensors, **extra}, folder / "model.safetensors")
    source(folder, "llama")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_all_ranks_make_up_the_whole(work: Path, model: str, size: int) -> None:
    """Each rank reads its own rows and columns: together they are what one rank alone reads."""
    import torch

    from runners.megatron.weights import row_of

    held = source(work / model, model)
    for name in everything(model):
        whole, parts = held.part(name, 0, 1), [held.part(name, rank, size) for rank in range(size)]
        form = row_of(held.rows, name)[0].form
        if form == "whole":
            assert all(torch.equal(part, whole) for part in parts)
        elif form == "gated":
            halves = [part.chunk(2) for part in parts]
            assert torch.equal(torch.cat([h[0] for h in halves] + [h[1] for h in halves]), whole)
        else:
            assert torch.equal(torch.cat(parts, 1 if form == "columns" else 0), whole)


def everything(model: str) -> list[str]:
    """All of our parameters' names."""
    from runners.megatron.weights import table

    rows = table(Model.model_validate(MODELS[model]))
    layers = MODELS[model]["layers"]
    return [row.ours.format(layer) for row in rows for layer in range(layers if "{}" in row.ours else 1)]


@settings(max_examples=30)
@given(groups=st.integers(1, 4), each=st.integers(1, 4), head=st.integers(1, 5), width=st.integers(0, 3))
def test_what_is_interleaved_is_separated_again(groups: int, each: int, head: int, width: int) -> None:
    import torch

    from runners.megatron.weights import interleaved, separated

    columns = (width,) if width else ()
    parts = [torch.randn(groups * n * head, *columns) for n in (each, 1, 1)]
    whole = interleaved(parts, groups)
    assert all(torch.equal(a, b) for a, b in zip(separated(whole, groups, each), parts, strict=True))
    assert torch.equal(whole[: each * head], parts[0][: each * head])  # the first group's queries come first


def test_a_large_model_is_written_in_several_files(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    from runners.megatron import weights

    monkeypatch.setattr(weights, "SHARD_BY", 200_000)
    held = source(work / "llama", "llama")
    config = RunConfig(model=Model.model_validate(MODELS["llama"]))
    folder = tmp_path / "hf"
    folder.mkdir()
    stale = folder / "model-00001-of-00099.safetensors"
    stale.write_bytes(b"x")
    whole = [(name, held.part(name, 0, 1)) for name in everything("llama")]
    with pytest.raises(AttributeError):  # what ends it half way leaves what was there
        weights.export([*whole[:5], (whole[5][0], None)], config, folder)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [stale.name]
    weights.export(whole, config, folder)
    assert not stale.exists()
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    again, original = source(folder, "llama"), load_file(work / "llama" / "model.safetensors")
    assert set(again.files.where) == set(original)
    assert all(torch.equal(again.part(n, 0, 1), held.part(n, 0, 1)) for n in everything("llama"))
