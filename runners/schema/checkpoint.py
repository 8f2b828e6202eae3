"""What is saved of a training, and from where it goes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runners.schema.base import Flag, Positive, Strict


class Checkpoint(Strict):
    """Saving and going on.

    `save_every` counts iterations; None saves only what `export_hf` needs. `keep` is how many stay on disk.
    `resume` is auto (the latest of this run's own folder, if there is one), never, or a checkpoint's folder.
    `export_hf` writes the weights of the last iteration in Hugging Face's format into `hf/` of the output folder.
    """

    save_every: Positive | None = None
    keep: Positive = 2
    resume: Annotated[str, Field(min_length=1)] = "auto"
    export_hf: Flag = False
