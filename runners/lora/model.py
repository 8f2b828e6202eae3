"""The model: loaded, given adapters, and spread over the processes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runners.errors import ConfigurationError, RunnerError
from runners.lora import fused
from runners.lora.data import Batch
from runners.process import Process
from runners.schema import LoraRunner

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SHOWN = 24  # module names in an error


@dataclass
class Wrapped:
    """A model that trains: `core` is the module that is saved, `outer` the one to call, with gradients in step.

    `sharded` says that each process holds a part of every weight.
    """

    core: Any
    outer: Any
    sharded: bool
    device: str
    bf16: bool
    picks: bool  # the model computes logits only where it is asked to

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [parameter for parameter in self.core.parameters() if parameter.requires_grad]

    def loss_sum(self, batch: Batch, *, training: bool) -> torch.Tensor:
        """The sum of the losses over the batch's target tokens, fp32, on the device."""
        called = self.outer if training or self.sharded else self.core
        only = {"logits_to_keep": batch.keep} if self.picks else {}
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.bf16):
            logits = called(input_ids=batch.ids, use_cache=False, **only).logits
        if not self.picks:
            logits = logits[:, batch.keep]
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten(), reduction="sum")

    def apart(self, last: bool) -> AbstractContextManager[Any]:
        """What a micro batch's backward runs in: gradients are put together after the `last` one of a step.

        Sharded whole models reduce at once instead: unreduced gradients of all weights are what does not fit.
        """
        if self.sharded:
            frozen = any(not parameter.requires_grad for parameter in self.core.parameters())
            self.core.set_requires_gradient_sync(last or not frozen)
        elif not last and self.outer is not self.core:
            within: AbstractContextManager[Any] = self.outer.no_sync()
            return within
        return nullcontext()

    def clip(self, most: float) -> float:
        """Scale the gradients down to a norm of at most `most` (0: never); the norm before, over all processes."""
        norm = nn.utils.clip_grad_norm_(self.trainable, most or float("inf"), foreach=not self.sharded)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def base_dtype(runner: LoraRunner) -> torch.dtype:
    """What the model's weights are loaded in."""
    auto = "bf16" if runner.bf16 and runner.lora else "fp32"
    return DTYPES[auto if runner.base_dtype == "auto" else runner.base_dtype]


def build(runner: LoraRunner, folder: Path, process: Process, device: str) -> Wrapped:
    """Load the model and make it ready to train; call it on all ranks, in the process group.

    Raises ConfigurationError for a model that transformers does not know, wrong target modules or a sequence beyond
    what the model takes, RunnerError for weights that cannot be read.
    """
    torch.manual_seed(runner.seed)
    sharded = runner.strategy == "fsdp"
    core = load(runner, folder, "meta" if sharded and not process.first else "cpu" if sharded else device)
    picks = "logits_to_keep" in inspect.signature(core.forward).parameters
    if runner.gradient_checkpointing:
        core.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if runner.lora:
        core = adapted(core, runner)
    core.train()
    if sharded:
        core = shard(core, runner, process, device)
    outer = core
    if not sharded and process.world > 1:
        own = None if device == "cpu" else [process.local_rank]
        outer = nn.parallel.DistributedDataParallel(core, device_ids=own, gradient_as_bucket_view=True)
    return Wrapped(core, outer, sharded, device, runner.bf16, picks)


def load(runner: LoraRunner, folder: Path, device: str) -> Any:
    """The bare model of `folder` on a device; on "meta" its shape only."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fused.register(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"the model in {folder} is none that transformers knows: {_line(error)}.", every_rank=True
        ) from error
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and runner.seq_len > longest:
        raise ConfigurationError(
            f"runner.seq_len={runner.seq_len} is beyond the {longest} tokens that the model in {folder} takes.",
            hint=f"Set runner.seq_len={longest} or less.",
            every_rank=True,
        )
    options = {"dtype": base_dtype(runner), "attn_implementation": runner.attention, "trust_remote_code": False}
    try:
        if device == "meta":
            with torch.device("meta"):
                return AutoModelForCausalLM.from_config(config, **options)
        placed = {} if device == "cpu" else {"device_map": {"": device}}
        return AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, **options, **placed)
    except ImportError as error:
        raise ConfigurationError(
            f"runner.attention={runner.attention} cannot be had here: {_line(error)}.", every_rank=True
        ) from error
    except (OSError, ValueError) as error:
        raise RunnerError(f"the model in {folder} cannot be loaded: {_line(error)}.", every_rank=True) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise RunnerError(
            f"the weights in {folder} are damaged: {_line(error)}.", hint="Copy them again.", every_rank=True
        ) from error


def adapted(core: Any, runner: LoraRunner) -> Any:
    """The model with adapters beside the target modules; everything else is frozen."""
    from peft import LoraConfig, get_peft_model

    targets = check_targets(core, runner.target_modules)
    settings = LoraConfig(
        r=runner.r,
        lora_alpha=int(runner.alpha) if runner.alpha.is_integer() else runner.alpha,  # type: ignore[arg-type]
        lora_dropout=runner.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        bias="none",
        fan_in_fan_out=any(type(m).__name__ == "Conv1D" for m in core.modules()),
    )
    with warnings.catch_warnings():  # where the base is wanted in bf16, that its adapters are fp32 is no surprise
        warnings.simplefilter("ignore")
        return get_peft_model(core, settings)


def check_targets(core: Any, wanted: Iterable[str]) -> list[str] | str:
    """The target modules for peft. Raises ConfigurationError for one that the model lacks, listing what it has."""
    kinds = {name: type(module).__name__ for name, module in core.named_modules()}
    linear = {name for name, kind in kinds.items() if kind in ("Linear", "Conv1D", "Embedding")}
    targets = list(wanted)
    if targets == ["all-linear"]:
        return "all-linear"
    for target in targets:
        if any(name == target or name.endswith(f".{target}") for name in linear):
            continue
        known = sorted({name.rpartition(".")[2] for name in linear})
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise ConfigurationError(
            f"runner.target_modules: the model has no module {target!r} that an adapter could stand beside.",
            hint=f"It has {', '.join(known[:_SHOWN])}{more}.",
            every_rank=True,
        )
    return targets


def shard(core: Any, runner: LoraRunner, process: Process, device: str) -> Any:
    """Spread every weight over all processes, layer by layer (FSDP).

    Only rank 0 has read the weights; the others hold shapes. So a model that no single GPU takes fits, and the host
    memory of one copy is enough for a node.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    whole = {name: tensor.detach() for name, tensor in core.state_dict().items()} if process.first else {}
    buffers = {name: buffer.detach().clone() for name, buffer in core.named_buffers()} if process.first else {}
    ties = shared(core)
    core = core.to("meta")
    tie(ties)
    mesh = init_device_mesh(torch.device(device).type, (process.world,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if runner.bf16 else None, reduce_dtype=torch.float32 if runner.bf16 else None
    )
    for layer in layers(core):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(core, mesh=mesh, mp_policy=policy)
    core.to_empty(device=device)
    tie(ties)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=process.first)
    set_model_state_dict(core, whole, options=options)
    _broadcast(core, buffers, device)
    return core


def shared(core: Any) -> list[list[tuple[nn.Module, str]]]:
    """Where one parameter stands in several modules, as an embedding that is also the head: each with its places."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in core.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


def tie(ties: Sequence[Sequence[tuple[nn.Module, str]]]) -> None:
    """Make them one again: moving a model to another device gives every place a parameter of its own."""
    for (module, name), *others in ties:
        for other, known_as in others:
            other.register_parameter(known_as, module.get_parameter(name))


def layers(core: Any) -> list[Any]:
    """The transformer's layers: what its author says must stay together, else the longest list of modules."""
    names = set(getattr(core, "_no_split_modules", None) or getattr(core.config, "_no_split_modules", None) or ())
    found = [module for module in core.modules() if type(module).__name__ in names]
    if found:
        return found
    lists = [module for module in core.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def _broadcast(core: Any, buffers: Mapping[str, torch.Tensor], device: str) -> None:
    """Buffers that no file holds, such as rotary frequencies, are rank 0's on all ranks."""
    for name, buffer in core.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name].to(device))
        dist.broadcast(buffer, src=0)


def counts(core: Any) -> tuple[int, int]:
    """All parameters and the trained ones; sharded ones count whole."""
    every = [(parameter.numel(), parameter.requires_grad) for parameter in core.parameters()]
    return sum(size for size, _ in every), sum(size for size, trained in every if trained)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
