"""Adapters added to the weights they belong to: a model like any other, with the same outputs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from runners.errors import RunnerError, writing
from runners.lora import fused

NAME = "merged"


def merge(base: Path, adapter: Path, tokenizer: Any, into: Path) -> Path:
    """Write `into`/merged: the model in `base` with the adapter in `adapter` added; returns the folder.

    In the type that `base` is kept in; whole or not at all. On the host, one process.
    Raises RunnerError where it cannot be read or written.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    target, part = into / NAME, into / f".{NAME}.part"
    fused.register(base)
    try:
        whole = AutoModelForCausalLM.from_pretrained(
            str(base), local_files_only=True, trust_remote_code=False, dtype="auto"
        )
        merged = PeftModel.from_pretrained(whole, str(adapter)).merge_and_unload()
    except (OSError, ValueError) as error:
        raise RunnerError(f"{adapter} cannot be merged into {base}: {error}.", every_rank=True) from error
    try:
        with writing(str(target)):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            merged.save_pretrained(str(part))
            if tokenizer is not None:
                tokenizer.save_pretrained(str(part))
            shutil.rmtree(target, ignore_errors=True)
            os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target
