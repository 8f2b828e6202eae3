"""What a model and its training measure: parameters, floating-point operations, memory. Pure arithmetic, no torch.

P are the parameters that take part in a matrix product (not the embedding table, but the logits), h is
heads x head size, s the sequence length, L the layers; forward and backward together, FLOP a token:

    A   6P            matrix products of the weights only
    B   6P +  6 L h s causal attention, the half that is computed: ours, and Megatron-LM's
    C   6P + 12 L h s attention over the full square

SwiGLU has three matrices, GELU two; grouped heads shrink the key and value projections but not the attention core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from runners.schema import RunConfig

CONVENTION = "B"
GIB = 2**30
# What no tensor of ours takes: the driver's context, libraries' workspaces, NCCL or RCCL; on the host the libraries.
FIXED_BY = {"cpu": GIB * 3 // 4, "cuda": GIB * 3 // 2, "rocm": GIB * 2}
SPARE = 0.06  # of the tensors: what the allocator cannot use
REFUSED, WARNED = 1.1, 0.9  # shares of a card from which on an estimate is an error, and a warning


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


@dataclass(frozen=True)
class Memory:
    """The estimate for the fullest GPU, in bytes; `stage` is its place in the pipeline, counted from 0.

    `allowance` is for what is no tensor of the training, and for what the allocator cannot use.
    """

    stage: int
    weights: int
    gradients: int
    master: int  # fp32 weights beside those of a lower precision
    optimizer: int
    activations: int
    logits: int  # with the loss and its gradients
    allowance: int

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part, the largest first."""
        names = ("weights", "gradients", "master", "optimizer", "activations", "logits", "allowance")
        return dict(sorted(((name, getattr(self, name)) for name in names), key=lambda part: -part[1]))

    @property
    def total(self) -> int:
        """All parts."""
        return sum(self.parts.values())


def memory(config: RunConfig, vocab: int) -> Memory:
    """The memory that a Megatron training takes on its fullest GPU, with `vocab` rows in its tables (padded).

    Known from the sizes before anything is built; what libraries hold for themselves is estimated.
    """
    return max((_stage(config, vocab, stage) for stage in range(config.training.parallel.pipeline)), key=_total)


def _total(found: Memory) -> int:
    return found.total


def _stage(config: RunConfig, vocab: int, stage: int) -> Memory:
    training = config.training
    held = stage_parameters(config, vocab, stage)
    element = 4 if training.precision == "fp32" else 2
    share = training.parallel.data * training.parallel.context if _divides(config) else 1
    summed = 4 if element == 4 or training.gradients == "fp32" else 2
    lower = element < 4
    state = {
        "weights": held * element + (_matrices(config) if training.precision == "fp8" else 0),  # their fp8 copies
        "gradients": held * summed + (held * 4 // share if summed < 4 else 0),  # the update wants fp32 ones
        "master": held * 4 // share if lower else 0,
        "optimizer": held * 8 // share,
        "activations": activations(config, stage),
        "logits": logits(config, vocab) if stage == training.parallel.pipeline - 1 else 0,
    }
    fixed = FIXED_BY[training.backend] + int(SPARE * sum(state.values()))
    return Memory(stage=stage, allowance=fixed, **state)


def _matrices(config: RunConfig) -> int:
    """Parameters in the matrices of a stage's layers, of one tensor rank."""
    layers = config.model.layers // config.training.parallel.pipeline
    matrices = attention_matrices(config.model) + feed_forward_matrices(config.model)
    return layers * matrices // config.training.parallel.tensor


def _divides(config: RunConfig) -> bool:
    return config.training.distributed_optimizer and config.training.backend != "cpu"


def stage_parameters(config: RunConfig, vocab: int, stage: int) -> int:
    """Parameters on a GPU of pipeline stage `stage`, with its share of what is cut over the tensor ranks."""
    model, parallel = config.model, config.training.parallel
    first, last = stage == 0, stage == parallel.pipeline - 1
    layers = model.layers // parallel.pipeline
    cut = layers * (attention_matrices(model) + feed_forward_matrices(model))
    cut += vocab * model.hidden * (first + last - (1 if first and last and model.tied_embeddings else 0))
    whole = layers * vectors(model)
    if model.architecture == "gpt":
        whole += (model.max_sequence or 0) * model.hidden * first + 2 * model.hidden * last
    else:
        whole += model.hidden * last
    return cut // parallel.tensor + whole


def activations(config: RunConfig, stage: int) -> int:
    """Bytes that the layers of a stage keep for the backward pass, all micro batches in flight together."""
    training, parallel = config.training, config.training.parallel
    tokens = training.micro_batch * training.sequence_length // parallel.context
    element = 4 if training.precision == "fp32" else 2
    kept, whole = kept_elements(config)
    layers = in_flight_layers(config, stage)
    # What is recomputed exists once more, for one layer at a time.
    again = whole if training.recompute != "none" else 0
    return int(tokens * element * (layers * kept + again))


def kept_elements(config: RunConfig) -> tuple[float, float]:
    """Elements a token that a layer keeps: as configured, and without recomputing."""
    model, training = config.model, config.training
    tensor = training.parallel.tensor
    stream = model.hidden / (tensor if training.parallel.sequence else 1)
    query, both = model.hidden / tensor, 2 * model.hidden * model.kv_heads / model.heads / tensor
    ffn = model.ffn / tensor
    fused = training.backend != "cpu" and training.kernels.layer != "plain" and model.architecture == "llama"
    inner = 2 * ffn if model.architecture == "gpt" else (3 if fused else 4) * ffn
    # Input and norm twice; query, key, value and the attention's output; the feed-forward part.
    whole = 4 * stream + 2 * query + both + inner
    if training.recompute == "none":
        return whole, whole
    if training.recompute == "full":
        return stream, whole
    summed = tensor > 1 and not training.parallel.sequence  # in place, by the tensor ranks: repeated, not kept
    products = 2 * query + both + (0 if summed else 2 * stream) + (ffn if model.architecture == "gpt" else 2 * ffn)
    return stream + products, whole


def in_flight_layers(config: RunConfig, stage: int) -> float:
    """Layers whose activations a stage holds at most: its layers, once for each micro batch in flight under 1F1B."""
    training, parallel = config.training, config.training.parallel
    micro = training.global_batch // (training.micro_batch * parallel.data)
    layers = config.model.layers / parallel.pipeline
    if parallel.virtual_pipeline:
        chunks = 2 * (parallel.pipeline - stage - 1) + (parallel.virtual_pipeline - 1) * parallel.pipeline + 1
        return layers / parallel.virtual_pipeline * min(chunks, micro * parallel.virtual_pipeline)
    return layers * min(parallel.pipeline - stage, micro)


def logits(config: RunConfig, vocab: int) -> int:
    """Bytes of the last projection and of the loss at their peak, on the last stage."""
    model, training = config.model, config.training
    tokens = training.micro_batch * training.sequence_length // training.parallel.context
    element = 4 if training.precision == "fp32" else 2
    width = vocab // training.parallel.tensor
    plain = training.kernels.loss == "plain" or (training.kernels.loss == "auto" and training.backend == "cpu")
    if plain:  # the logits, and twice in fp32: their softmax and its gradient
        return tokens * width * (element + 8)
    table = width * model.hidden
    chunk = min(training.kernels.loss_chunk, tokens)
    return chunk * width * element + tokens * model.hidden * element + table * (4 + (element if element < 4 else 0))


@dataclass(frozen=True)
class Advice:
    """A change of one key that lowers the estimate by `saves` bytes, on `gpus` times the GPUs."""

    key: str
    value: object
    saves: int
    gpus: int = 1

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        more = f" on {self.gpus} times the GPUs" if self.gpus > 1 else ""
        return f"{self.key}={value}{more} (saves {self.saves / GIB:.1f} GiB)"


def advice(config: RunConfig, vocab: int, capacity: int) -> list[Advice]:
    """What to change so that the estimate fits `capacity` bytes, in order: what costs no speed first.

    Each saves what it says where those before it are taken too. Ends where it fits; all of them may not be enough.
    """
    found: list[Advice] = []
    start, now = config, memory(config, vocab).total
    for key, value, change in _changes(config):
        if now <= WARNED * capacity:
            break
        changed = _changed(config, change)
        then = memory(changed, vocab).total
        if now - then > 0.01 * now:
            before = found.pop().saves if found and found[-1].key == key else 0
            gpus = changed.training.parallel.processes // start.training.parallel.processes
            found.append(Advice(key, value, before + now - then, gpus))
            config, now = changed, then
    return found


def _changes(config: RunConfig) -> Iterator[tuple[str, object, dict[str, Any]]]:
    """Key, value, and the change of `training` (its keys, or `parallel.`, `kernels.` and theirs)."""
    training, parallel = config.training, config.training.parallel
    yield "training.kernels.loss", "fused", {"kernels.loss": "fused"}
    if parallel.data * parallel.context > 1:
        yield "training.distributed_optimizer", True, {"distributed_optimizer": True}
    if parallel.tensor > 1:
        yield "training.parallel.sequence", True, {"parallel.sequence": True}
    micro = training.micro_batch
    while micro > 1 and micro % 2 == 0:
        micro //= 2
        yield "training.micro_batch", micro, {"micro_batch": micro}
    yield "training.recompute", "selective", {"recompute": "selective"}
    yield "training.recompute", "full", {"recompute": "full"}
    if training.precision != "fp32":
        yield "training.gradients", "bf16", {"gradients": "bf16"}
    size = parallel.tensor
    while size < 8 and config.model.kv_heads % (2 * size) == 0:
        size *= 2
        yield "training.parallel.tensor", size, {"parallel.tensor": size, "parallel.sequence": True}


def _changed(config: RunConfig, change: dict[str, Any]) -> RunConfig:
    training = config.training
    for key, value in change.items():
        part, dot, name = key.partition(".")
        if dot:
            value = getattr(training, part).model_copy(update={name: value})  # noqa: PLW2901
        training = training.model_copy(update={part: value})
    return config.model_copy(update={"training": training})
