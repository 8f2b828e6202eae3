"""Logits of Hugging Face folders by our model: two processes of `torchrun -m tests.runners.logits WORK`.

WORK holds a folder a model, with model.json (our model.* keys), tokens.npy [b, s] and the weights. Written are
logits.npy and export/ by a process that has the whole model, logits.tensor<rank>.npy and logits.pipeline.npy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from runners.data import quiet

quiet.silence()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from runners import group, sizes  # noqa: E402
from runners.megatron import architecture, grid, layout, model, weights  # noqa: E402
from runners.megatron.backend import select  # noqa: E402
from runners.process import Process  # noqa: E402
from runners.schema import RunConfig  # noqa: E402


def configuration(folder: Path, **parallel: int) -> RunConfig:
    keys = json.loads((folder / "model.json").read_text())
    training = {"sequence_length": 64, "parallel": parallel}
    return RunConfig.model_validate({"model": {**keys, "weights": str(folder)}, "training": training})


def build(config: RunConfig) -> Any:
    backend = select("cpu")
    backend.seed(1)
    grid.lay(config.training.parallel)
    vocab = config.model.vocab or 0
    padded = sizes.padded_vocab(vocab, config.model.vocab_multiple, config.training.parallel.tensor)
    (chunk,) = model.build(config, backend, padded)
    return chunk.eval()


@torch.no_grad()
def logits(chunk: Any, tokens: torch.Tensor) -> torch.Tensor | None:
    """[b, s, vocabulary without padding's rank-wise gaps] on the last stage."""
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    peer = 1 - dist.get_rank()
    if not first:
        hidden = torch.empty(tokens.shape[1], tokens.shape[0], chunk.config.hidden_size)
        dist.recv(hidden, peer)
        chunk.set_input_tensor(hidden)
    with select("cpu").context():
        out = chunk(tokens, architecture.positions(chunk, tokens), None)
    if not last:
        dist.send(out.contiguous(), peer)
        return None
    size = parallel_state.get_tensor_model_parallel_world_size()
    if size == 1:
        return out
    parts = [torch.empty_like(out) for _ in range(size)]
    dist.all_gather(parts, out.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(parts, -1)


def work(folder: Path, name: str, **parallel: int) -> None:
    config = configuration(folder, **parallel)
    chunk = build(config)
    found = logits(chunk, torch.from_numpy(np.load(folder / "tokens.npy")))
    whole = "data" in parallel
    if found is not None and (dist.get_rank() == 0 or not whole):
        np.save(folder / name, found.numpy())
    if whole and dist.get_rank() == 0:
        count = sum(parameter.numel() for parameter in chunk.parameters())
        assert count == sizes.parameters(config.model, chunk.vocab_size), (folder.name, count)
        weights.export(((n, p.detach()) for n, p in layout.named(chunk)), config, folder / "export")
    parallel_state.destroy_model_parallel()


def main() -> None:
    torch.set_num_threads(1)
    process = Process.from_environment(os.environ)
    with group.joined(process, "gloo"):
        for folder in sorted(Path(sys.argv[1]).iterdir()):
            work(folder, "logits.npy", data=2)
            work(folder, f"logits.tensor{process.rank}.npy", tensor=2)
            if "tied" not in folder.name:  # megatron-core shares that table through a GPU
                work(folder, "logits.pipeline.npy", pipeline=2)


if __name__ == "__main__":
    main()
