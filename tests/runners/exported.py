"""What transformers makes of an exported model: its loss over a run's validation, written beside the run."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from runners.data import prepare, samples
from runners.schema import RunConfig


@torch.no_grad()
def main(folder: Path) -> None:
    """Write FOLDER/loss: the mean loss of FOLDER/out/hf over what the run in FOLDER validated on."""
    settings = RunConfig.model_validate_json((folder / "config.0.json").read_bytes())
    cache = Path(os.environ["EKVI_CACHE"])
    model = AutoModelForCausalLM.from_pretrained(folder / "out/hf", dtype=torch.float32)
    entry = prepare.find(settings.data, cache)
    _train, validation = samples.datasets(settings, entry, samples.index(settings, entry, cache))
    batch = settings.training.global_batch
    count = min(settings.training.eval_iters, len(validation) // batch) * batch
    tokens, labels = (torch.stack([validation[i][key] for i in range(count)]) for key in ("tokens", "labels"))
    losses = [
        torch.nn.functional.cross_entropy(model(input_ids=rows).logits.flatten(0, 1), wanted.flatten())
        for rows, wanted in zip(tokens.split(batch), labels.split(batch), strict=True)
    ]
    (folder / "loss").write_text(str(float(torch.stack(losses).mean())))
