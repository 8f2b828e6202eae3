"""Floating-point operations of a training step, by the three conventions in use.

P are the parameters that take part in a matrix product (not the embedding table, but the logits), h is
heads x head size, s the sequence length, L the layers; forward and backward together, per token:

    A   6P            matrix products of the weights only
    B   6P +  6 L h s causal attention, the half that is computed: ours, and Megatron-LM's
    C   6P + 12 L h s attention over the full square

SwiGLU has three matrices; grouped heads shrink the key and value projections but not the attention core.
"""

from __future__ import annotations

from runners.schema import Model

CONVENTION = "B"


def matmul_parameters(model: Model, vocab: int) -> int:
    """P for a model with `vocab` rows of logits."""
    head = model.hidden // model.heads
    attention = model.hidden * head * (2 * model.heads + 2 * model.kv_heads)
    return model.layers * (attention + 3 * model.hidden * model.ffn) + vocab * model.hidden


def parameters(model: Model, vocab: int) -> int:
    """All trained parameters with `vocab` rows in the embedding."""
    head = model.hidden // model.heads
    total = matmul_parameters(model, vocab) + (2 * model.layers + 1) * model.hidden
    if not model.tied_embeddings:
        total += vocab * model.hidden
    if model.qkv_bias:
        total += model.layers * head * (model.heads + 2 * model.kv_heads)
    return total


def per_token(model: Model, vocab: int, sequence: int) -> dict[str, int]:
    """FLOP of training a token in a sequence of `sequence` tokens, by convention."""
    weights = 6 * matmul_parameters(model, vocab)
    core = model.layers * model.hidden * sequence
    return {"A": weights, "B": weights + 6 * core, "C": weights + 12 * core}


def padded_vocab(vocab: int, multiple: int, tensor: int) -> int:
    """`vocab` rounded up to a multiple of `multiple` x `tensor`, so that every tensor rank has as many rows."""
    step = multiple * tensor
    return -(-vocab // step) * step
