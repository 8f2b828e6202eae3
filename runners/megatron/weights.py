"""Hugging Face's weights and megatron-core's, by one table of names.

megatron-core keeps query, key and value in one matrix, interleaved by key-value group, and gate over up in another;
GPT-2 keeps its matrices transposed. A rank reads from the files only the rows and columns that its part of the model
holds. The padding of the vocabulary is zero, and is left out again when weights are written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from runners import huggingface
from runners.errors import ConfigurationError, writing
from runners.megatron import layout
from runners.schema import Model, RunConfig

KEY = "model.weights"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BY = 4 * 2**30  # bytes a file when weights are written

Form = Literal["whole", "rows", "columns", "qkv", "gated", "vocabulary"]


@dataclass(frozen=True)
class Row:
    """A parameter of ours and the tensors of theirs that it is made of; `{}` is the layer's number.

    `form`: whole on every tensor rank; cut by rows or columns; query, key and value by group; gate and up each by
    rows; the vocabulary's rows with padding. `flipped` matrices are transposed in their files.
    """

    ours: str
    theirs: tuple[str, ...]
    form: Form
    flipped: bool = False


_OURS, _LLAMA, _GPT2 = "decoder.layers.{}.", "model.layers.{}.", "transformer.h.{}."
EMBEDDING = "embedding.word_embeddings.weight"


def table(model: Model) -> tuple[Row, ...]:
    """All parameters of a model."""
    return _gpt_table(model) if model.architecture == "gpt" else _llama_table(model)


def _llama_table(model: Model) -> tuple[Row, ...]:
    attention = _LLAMA + "self_attn."
    qkv = [(kind, tuple(f"{attention}{x}_proj.{kind}" for x in "qkv")) for kind in ("weight", "bias")]
    rows = [
        Row(EMBEDDING, ("model.embed_tokens.weight",), "vocabulary"),
        Row(_OURS + "input_layernorm.weight", (_LLAMA + "input_layernorm.weight",), "whole"),
        *(Row(f"{_OURS}self_attention.linear_qkv.{kind}", names, "qkv") for kind, names in qkv[: 1 + model.qkv_bias]),
        Row(_OURS + "self_attention.linear_proj.weight", (attention + "o_proj.weight",), "columns"),
        Row(_OURS + "pre_mlp_layernorm.weight", (_LLAMA + "post_attention_layernorm.weight",), "whole"),
        Row(
            _OURS + "mlp.linear_fc1.weight",
            (_LLAMA + "mlp.gate_proj.weight", _LLAMA + "mlp.up_proj.weight"),
            "gated",
        ),
        Row(_OURS + "mlp.linear_fc2.weight", (_LLAMA + "mlp.down_proj.weight",), "columns"),
        Row("decoder.final_layernorm.weight", ("model.norm.weight",), "whole"),
    ]
    if not model.tied_embeddings:
        rows.append(Row("output_layer.weight", ("lm_head.weight",), "vocabulary"))
    return tuple(rows)


def _gpt_table(model: Model) -> tuple[Row, ...]:
    rows = [
        Row(EMBEDDING, ("transformer.wte.weight",), "vocabulary"),
        Row("embedding.position_embeddings.weight", ("transformer.wpe.weight",), "whole"),
    ]
    for ours, theirs in (("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")):
        rows += [Row(f"{_OURS}{ours}.{kind}", (f"{_GPT2}{theirs}.{kind}",), "whole") for kind in ("weight", "bias")]
    linears: tuple[tuple[str, str, Form, Form], ...] = (
        ("self_attention.linear_qkv", "attn.c_attn", "qkv", "qkv"),
        ("self_attention.linear_proj", "attn.c_proj", "columns", "whole"),
        ("mlp.linear_fc1", "mlp.c_fc", "rows", "rows"),
        ("mlp.linear_fc2", "mlp.c_proj", "columns", "whole"),
    )
    for ours, theirs, weight, bias in linears:
        rows.append(Row(f"{_OURS}{ours}.weight", (f"{_GPT2}{theirs}.weight",), weight, flipped=True))
        rows.append(Row(f"{_OURS}{ours}.bias", (f"{_GPT2}{theirs}.bias",), bias))
    rows += [
        Row(f"decoder.final_layernorm.{kind}", (f"transformer.ln_f.{kind}",), "whole") for kind in ("weight", "bias")
    ]
    if not model.tied_embeddings:
        rows.append(Row("output_layer.weight", ("lm_head.weight",), "vocabulary"))
    return tuple(rows)


def row_of(rows: Iterable[Row], name: str) -> tuple[Row, int]:
    """The row of a parameter by its name in the whole model, and its layer (0 outside the layers)."""
    parts = name.split(".")
    layer = int(parts[2]) if name.startswith("decoder.layers.") else 0
    pattern = ".".join([*parts[:2], "{}", *parts[3:]]) if name.startswith("decoder.layers.") else name
    return next(row for row in rows if row.ours == pattern), layer


def source(config: RunConfig, padded: int) -> Source | None:
    """What this rank reads its first weights from; None for random ones. They are on this machine already."""
    folder = huggingface.fetch(config, here=True)
    return Source(folder, config.model, padded) if folder else None


class Files:
    """The safetensors of a folder, opened when they are asked for; names are always the longer published ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[str, Any] = {}

    @cached_property
    def where(self) -> dict[str, tuple[str, str]]:
        """Full name -> (file, the name that it has there). ConfigurationError where there are no safetensors."""
        if (self.folder / INDEX).is_file():
            with _legible(self.folder / INDEX):
                held = dict(json.loads((self.folder / INDEX).read_bytes())["weight_map"])
        else:
            names = sorted(path.name for path in self.folder.glob("*.safetensors"))
            if not names:
                raise ConfigurationError(
                    f"{KEY}: {self.folder} holds no safetensors.",
                    hint="It needs model.safetensors, or model.safetensors.index.json with the files that it lists.",
                    every_rank=True,
                )
            held = {name: file for file in names for name in self._opened(file).keys()}  # noqa: SIM118 - no mapping
        return {_full(name): (file, name) for name, file in held.items() if not _ignored(name)}

    def _opened(self, file: str) -> Any:
        if file not in self.open:
            from safetensors import safe_open

            path = self.folder / file
            if not path.is_file():
                raise ConfigurationError(
                    f"{KEY}: {self.folder} lacks {file}, which its index lists.", every_rank=True
                )
            with _legible(path):
                self.open[file] = safe_open(str(path), framework="pt", device="cpu")
        return self.open[file]

    def slice(self, name: str) -> Any:
        """The lazy tensor `name`: it has get_shape() and is read by slices."""
        file, held = self.where[name]
        with _legible(self.folder / file):
            return self._opened(file).get_slice(held)


class Source:
    """What a rank reads from: the files of a folder, checked against the whole model first."""

    def __init__(self, folder: Path, model: Model, padded: int) -> None:
        """`padded` is the number of rows in our table. ConfigurationError where the folder holds another model."""
        told = huggingface.read(folder)
        huggingface.check(model, told, folder)
        self.model, self.vocab, self.padded = model, int(told["vocab_size"]), padded
        self.files = Files(folder)
        self.rows = table(model)
        self._check_names(folder)

    def part(self, name: str, rank: int, size: int) -> torch.Tensor:
        """Tensor rank `rank`'s part, of `size`, of our parameter `name` (of the whole model)."""
        row, layer = row_of(self.rows, name)
        theirs = [their.format(layer) for their in row.theirs]
        if row.form == "qkv":
            return self._qkv(theirs, rank, size, flipped=row.flipped)
        if row.form == "gated":
            return torch.cat([self._cut(n, self.model.ffn, rank, size, flipped=row.flipped) for n in theirs])
        (their,) = theirs
        if row.form == "vocabulary":
            return self._vocabulary(their, rank, size)
        if row.form == "rows":
            return self._cut(their, self.model.ffn, rank, size, flipped=row.flipped)
        if row.form == "columns":
            width = self.model.ffn if "fc2" in row.ours else self.model.hidden
            step = width // size
            return self._read(their, (None, width), columns=(rank * step, (rank + 1) * step), flipped=row.flipped)
        return self._read(their, (None,), flipped=row.flipped)

    def _cut(self, name: str, length: int, rank: int, size: int, *, flipped: bool) -> torch.Tensor:
        step = length // size
        return self._read(name, (length,), rows=(rank * step, (rank + 1) * step), flipped=flipped)

    def _vocabulary(self, name: str, rank: int, size: int) -> torch.Tensor:
        step = self.padded // size
        first, last = rank * step, (rank + 1) * step
        held = self._read(name, (self.vocab, self.model.hidden), rows=(min(first, self.vocab), min(last, self.vocab)))
        return torch.cat([held, held.new_zeros(step - len(held), *held.shape[1:])])

    def _qkv(self, names: list[str], rank: int, size: int, *, flipped: bool) -> torch.Tensor:
        """Query, key and value of this rank's groups, in three tensors or one, to one interleaved by group."""
        model = self.model
        head = model.hidden // model.heads
        widths = (model.heads * head, model.kv_heads * head, model.kv_heads * head)
        packed, begin, parts = len(names) == 1, 0, []
        for position, width in enumerate(widths):
            step = width // size
            rows = (begin + rank * step, begin + (rank + 1) * step)
            total = sum(widths) if packed else width
            parts.append(self._read(names[0 if packed else position], (total,), rows=rows, flipped=flipped))
            begin += width if packed else 0
        return interleaved(parts, model.kv_heads // size)

    def _read(
        self,
        name: str,
        shape: tuple[int | None, ...],
        *,
        rows: tuple[int, int] | None = None,
        columns: tuple[int, int] | None = None,
        flipped: bool = False,
    ) -> torch.Tensor:
        """A rectangle of their tensor, the right way round; `shape` is what its first dimensions must be."""
        held = self.files.slice(name)
        found = tuple(held.get_shape())
        across = found[::-1] if flipped else found
        if len(across) < len(shape) or any(
            want is not None and want != got for want, got in zip(shape, across, strict=False)
        ):
            self._wrong_shape(name, found, shape)
        cuts = [slice(*rows) if rows else slice(None)]
        if len(across) > 1:
            cuts.append(slice(*columns) if columns else slice(None))
        with _legible(self.files.folder / self.files.where[name][0]):
            part: torch.Tensor = held[tuple(cuts[::-1] if flipped else cuts)]
        return part.t() if flipped else part

    def _wrong_shape(self, name: str, found: tuple[int, ...], want: tuple[int | None, ...]) -> None:
        asked = " x ".join("any" if n is None else str(n) for n in want)
        raise ConfigurationError(
            f"{KEY}: {name} in {self.files.folder} is {' x '.join(map(str, found))}, but model.* asks for {asked}.",
            every_rank=True,
        )

    def _check_names(self, folder: Path) -> None:
        """Every tensor that the model needs is there, and no other."""
        wanted = {
            their.format(layer)
            for row in self.rows
            for their in row.theirs
            for layer in range(self.model.layers if "{}" in their else 1)
        }
        held = set(self.files.where)
        if self.model.tied_embeddings:
            held.discard("lm_head.weight")  # some save the embedding twice
        for names, told in ((wanted - held, "lacks"), (held - wanted, "holds what model.* has no place for:")):
            if names:
                some = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                raise ConfigurationError(f"{KEY}: {folder} {told} {some}.", every_rank=True)


@torch.no_grad()
def load(chunk: Any, source: Source, rank: int, size: int) -> None:
    """Fill the chunk's parameters from `source` as tensor rank `rank` of `size`.

    Raises ConfigurationError for a tensor of another shape and a file that cannot be read.
    """
    for name, parameter in layout.named(chunk):
        part = source.part(name, rank, size)
        if part.shape != parameter.shape:
            source._wrong_shape(name, tuple(part.shape), tuple(parameter.shape))
        parameter.copy_(part)


def interleaved(parts: list[torch.Tensor], groups: int) -> torch.Tensor:
    """Query [q, ...], key and value [k, ...] of `groups` key-value groups, row by row of each group."""
    grouped = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, 1).reshape(-1, *parts[0].shape[1:])


def separated(whole: torch.Tensor, groups: int, heads_a_group: int) -> list[torch.Tensor]:
    """The reverse of `interleaved`."""
    head = whole.shape[0] // (groups * (heads_a_group + 2))
    grouped = whole.reshape(groups, -1, *whole.shape[1:])
    return [p.reshape(-1, *whole.shape[1:]) for p in grouped.split([heads_a_group * head, head, head], 1)]


def theirs(name: str, whole: torch.Tensor, model: Model, vocab: int) -> dict[str, torch.Tensor]:
    """Their tensors of our whole parameter `name`."""
    row, layer = row_of(table(model), name)
    if row.form == "qkv":
        parts = separated(whole, model.kv_heads, model.heads // model.kv_heads)
    elif row.form == "gated":
        parts = list(whole.chunk(2))
    else:
        parts = [whole[:vocab] if row.form == "vocabulary" else whole]
    if len(row.theirs) < len(parts):
        parts = [torch.cat(parts)]
    flip = row.flipped
    return {n.format(layer): (p.t() if flip else p).contiguous() for n, p in zip(row.theirs, parts, strict=True)}


def export(
    tensors: Iterable[tuple[str, torch.Tensor]], config: RunConfig, folder: Path, vocab: int | None = None
) -> None:
    """Write `tensors`, our whole parameters by name, as a Hugging Face model into `folder`.

    The padding of the vocabulary is left out down to `vocab`, else model.vocab where it is set. Holds one file's
    tensors at a time. The folder is replaced whole or not at all. Raises RunnerError where it cannot be written.
    """
    from safetensors.torch import save_file

    model = config.model
    words, dtype = vocab or model.vocab, torch.float32
    files: list[tuple[Path, list[str], int]] = []
    held: dict[str, torch.Tensor] = {}
    size = 0
    part = folder.with_name(f".{folder.name}.part")
    try:
        with writing(str(folder)):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for name, whole in tensors:
                if name == EMBEDDING:
                    words, dtype = words or len(whole), whole.dtype
                for their, tensor in theirs(name, whole, model, words or len(whole)).items():
                    held[their] = tensor
                    size += tensor.nbytes
                if size >= SHARD_BY:
                    files.append(_spill(held, part, len(files), save_file))
                    held, size = {}, 0
            files.append(_spill(held, part, len(files), save_file))
            _name_files(files, part)
            told = huggingface.written(
                model, words or 0, str(dtype).removeprefix("torch."), config.training.sequence_length
            )
            (part / huggingface.CONFIG).write_text(json.dumps(told, indent=2) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _spill(held: dict[str, torch.Tensor], folder: Path, number: int, save: Any) -> tuple[Path, list[str], int]:
    path = folder / f".part-{number:05d}.safetensors"
    save(held, str(path), metadata={"format": "pt"})
    return path, list(held), sum(tensor.nbytes for tensor in held.values())


def _name_files(files: list[tuple[Path, list[str], int]], folder: Path) -> None:
    """Give the files the names that are expected: one file, or numbered ones with an index."""
    if len(files) == 1:
        files[0][0].rename(folder / SINGLE)
        return
    places = {}
    for number, (path, names, _size) in enumerate(files, 1):
        target = path.rename(folder / f"model-{number:05d}-of-{len(files):05d}.safetensors")
        places.update(dict.fromkeys(names, target.name))
    index = {"metadata": {"total_size": sum(size for *_, size in files)}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _full(name: str) -> str:
    """A name as the model's own class has it: some files leave out its first part, or have one more."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    if name.startswith(("h.", "wte.", "wpe.", "ln_f.")):
        return "transformer." + name
    return name


def _ignored(name: str) -> bool:
    """What is no weight (constants that old files hold), and a vision-language model's eyes."""
    return name.endswith((".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")) or "visual." in name


@contextmanager
def _legible(path: Path) -> Iterator[None]:
    """Turn what a broken file raises into one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ConfigurationError(f"{KEY}: {path} cannot be read: {told}.", every_rank=True) from error
