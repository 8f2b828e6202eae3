"""What a model and its training measure: parameters, floating-point operations, memory. Pure arithmetic, no torch.

P are the parameters that take part in a matrix product (not the embedding table, but the logits), h is
heads x head size, s the sequence length, L the layers; forward and backward together, FLOP a token:

    A   6P            matrix products of the weights only
    B   6P +  6 L h s causal attention, the half that is computed: ours, and Megatron-LM's
    C   6P + 12 L h s attention over the full square

SwiGLU has three matrices, GELU two; grouped heads shrink the key and value projections but not the attention core.
"""

from __future__ import annotations

from typing import Protocol

CONVENTION = "B"


class Shape(Protocol):
    """What decides a model's matrix products; `architecture` is llama or gpt. runners.schema.Model is one."""

    @property
    def architecture(self) -> str: ...  # noqa: D102 - a protocol's fields

    @property
    def layers(self) -> int: ...  # noqa: D102

    @property
    def hidden(self) -> int: ...  # noqa: D102

    @property
    def heads(self) -> int: ...  # noqa: D102

    @property
    def kv_heads(self) -> int: ...  # noqa: D102

    @property
    def ffn(self) -> int: ...  # noqa: D102


class Trained(Shape, Protocol):
    """A shape with what is trained beside its matrices; `max_sequence` are the rows of a gpt's position table."""

    @property
    def tied_embeddings(self) -> bool: ...  # noqa: D102

    @property
    def qkv_bias(self) -> bool: ...  # noqa: D102

    @property
    def max_sequence(self) -> int | None: ...  # noqa: D102


def attention_matrices(shape: Shape) -> int:
    """Parameters of a layer's query, key, value and output projections."""
    return shape.hidden * (shape.hidden // shape.heads) * (2 * shape.heads + 2 * shape.kv_heads)


def feed_forward_matrices(shape: Shape) -> int:
    """Parameters of a layer's feed-forward matrices: three where it is gated, else two."""
    return (2 if shape.architecture == "gpt" else 3) * shape.hidden * shape.ffn


def matmul_parameters(shape: Shape, vocab: int) -> int:
    """P for a model with `vocab` rows of logits, padding included."""
    return shape.layers * (attention_matrices(shape) + feed_forward_matrices(shape)) + vocab * shape.hidden


def vectors(model: Trained) -> int:
    """A layer's norms and biases."""
    qkv = model.hidden // model.heads * (model.heads + 2 * model.kv_heads)
    if model.architecture == "gpt":  # two norms of weight and bias; biases of qkv, proj, fc1 and fc2
        return 4 * model.hidden + qkv + model.hidden + model.ffn + model.hidden
    return 2 * model.hidden + (qkv if model.qkv_bias else 0)


def outside(model: Trained) -> int:
    """The final norm and a gpt's position table."""
    if model.architecture == "gpt":
        return (2 + (model.max_sequence or 0)) * model.hidden
    return model.hidden


def parameters(model: Trained, vocab: int) -> int:
    """All trained parameters with `vocab` rows in the embedding, padding included."""
    tables = vocab * model.hidden * (0 if model.tied_embeddings else 1)
    return matmul_parameters(model, vocab) + model.layers * vectors(model) + outside(model) + tables


def per_token(shape: Shape, vocab: int, sequence: int) -> dict[str, int]:
    """FLOP of training a token in a sequence of `sequence` tokens, by convention."""
    weights = 6 * matmul_parameters(shape, vocab)
    core = shape.layers * shape.hidden * sequence
    return {"A": weights, "B": weights + 6 * core, "C": weights + 12 * core}


def padded_vocab(vocab: int, multiple: int, tensor: int = 1) -> int:
    """`vocab` rounded up to a multiple of `multiple` x `tensor`, so that every tensor rank has as many rows."""
    step = multiple * tensor
    return -(-vocab // step) * step
