"""What is trained: the model's shape, and where its first weights come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self  # pydantic brings it; typing has it from 3.11 on

from runners.schema.base import Flag, Positive, Real, Strict, refuse


class RopeScaling(Strict):
    """Llama 3's stretching of rotary positions: what turns slowly turns `factor` times slower still.

    The two frequency factors bound where it begins and where it is whole, in turns over the original sequence.
    """

    factor: Annotated[Real, Field(ge=1)] = 8.0
    low_freq_factor: Annotated[Real, Field(gt=0)] = 1.0
    high_freq_factor: Annotated[Real, Field(gt=0)] = 4.0
    original_sequence: Positive = 8192

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise refuse(
                f"model.rope_scaling.high_freq_factor {self.high_freq_factor} must be above"
                f" model.rope_scaling.low_freq_factor {self.low_freq_factor}",
                "high_freq_factor",
                "low_freq_factor",
            )
        return self


class Model(Strict):
    """A decoder-only transformer.

    `architecture` llama has RMSNorm, SwiGLU, rotary positions and no biases but those of `qkv_bias`; gpt has
    LayerNorm, GELU, a learned table of `max_sequence` positions and a bias in every linear layer.
    `vocab` None takes the tokenizer's size; it is padded to a multiple of `vocab_multiple` times the tensor size.
    `max_sequence` is the longest sequence the model takes; None sets no bound. `weights` None starts from random
    ones, else from a repo id (at `revision`) or a local folder in Hugging Face's layout.
    """

    name: str = "tiny"
    description: str = ""
    architecture: Literal["llama", "gpt"] = "llama"
    layers: Positive = 4
    hidden: Positive = 128
    heads: Positive = 4
    kv_heads: Positive = 2
    ffn: Positive = 352
    vocab: Positive | None = None
    vocab_multiple: Positive = 64
    max_sequence: Positive | None = None
    rope_base: Annotated[Real, Field(gt=0)] = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: Annotated[Real, Field(gt=0)] = 1e-5
    tied_embeddings: Flag = False
    qkv_bias: Flag = False
    weights: str | None = None
    revision: str | None = None

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden % self.heads:
            raise refuse(f"model.hidden {self.hidden} does not divide by model.heads {self.heads}", "heads", "hidden")
        if self.heads % self.kv_heads:
            raise refuse(
                f"model.heads {self.heads} does not divide by model.kv_heads {self.kv_heads}", "kv_heads", "heads"
            )
        return self

    @model_validator(mode="after")
    def _positions(self) -> Self:
        if self.architecture == "gpt" and self.max_sequence is None:
            raise refuse(
                "model.architecture=gpt learns its positions, so it needs model.max_sequence", "max_sequence"
            )
        if self.architecture == "gpt" and self.rope_scaling is not None:
            raise refuse(
                "model.rope_scaling is for rotary positions, which model.architecture=gpt does not have",
                "rope_scaling",
                "architecture",
            )
        if self.revision is not None and self.weights is None:
            raise refuse("model.revision is of model.weights, which is null", "revision", "weights")
        return self
