"""What is trained: the model's shape, and where its first weights come from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, Positive, Real, Strict, refuse


class Model(Strict):
    """A decoder-only transformer in Llama's shape.

    `vocab` None takes the tokenizer's size; it is padded to a multiple of `vocab_multiple` times the tensor size.
    """

    name: str = "tiny"
    layers: Positive = 4
    hidden: Positive = 128
    heads: Positive = 4
    kv_heads: Positive = 2
    ffn: Positive = 352
    vocab: Positive | None = None
    vocab_multiple: Positive = 64
    rope_base: Annotated[Real, Field(gt=0)] = 10000.0
    norm_eps: Annotated[Real, Field(gt=0)] = 1e-5
    tied_embeddings: Flag = False
    qkv_bias: Flag = False

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % self.heads:
            raise refuse(f"model.hidden {self.hidden} does not divide by model.heads {self.heads}", "heads", "hidden")
        if self.heads % self.kv_heads:
            raise refuse(
                f"model.heads {self.heads} does not divide by model.kv_heads {self.kv_heads}", "kv_heads", "heads"
            )
        return self
