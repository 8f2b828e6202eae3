"""What libraries raise when a machine or a hub is not as it should be, in one sentence with the mend.

Known are: no memory left on the GPU or the host, NCCL and RCCL, a rank without a GPU, a driver that does not fit,
no room on a disk, gated repos and what the hub refuses, local files that are missing. Classes are told by their
names: nothing is imported to look at an error. What is not known keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runners.errors import ConfigurationError, RunnerError
from runners.schema import LoraRunner, RunConfig, SmokeRunner

_MOST_ADVICE = 3
_LONGEST = 300


@contextmanager
def explained(config: RunConfig | None = None) -> Iterator[None]:
    """Turn what is known of what happens within into RunnerErrors; `config` is the run's, for the keys to change."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        known = understood(error, config)
        if known is None:
            raise
        raise known from error


def understood(error: BaseException, config: RunConfig | None = None) -> RunnerError | None:
    """The RunnerError for `error`, or for what it was raised from; None where nothing here knows it."""
    seen: BaseException | None = error
    while seen is not None:
        for explain in _KNOWN:
            found = explain(seen, config)
            if found is not None:
                return found
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def _is(error: BaseException, *names: str) -> bool:
    """Whether `error` is of one of the classes, by name."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _said(error: BaseException) -> str:
    """The error's first line, short and without a full stop."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first[:_LONGEST].rstrip(". ")


# ---- memory

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")
_TOTAL = re.compile(r"GPU (\d+) has a total capac\w+ of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")
_OTHERS = re.compile(r"Process \d+ has ([\d.]+ \w+) memory in use")
_ALLOCATED = re.compile(r"([\d.]+ \w+) is allocated by PyTorch(?:.*?and ([\d.]+ \w+) is reserved by PyTorch but un)?")
_OOM_SAID = re.compile(
    r"(?:CUDA|HIP)(?: error| failure)?:? ?(?:2 )?'?out of memory|(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED"
)
_HOST_SAID = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes")
_GIB = {"GiB": 1.0, "MiB": 2.0**-10, "KiB": 2.0**-20, "bytes": 2.0**-30}


def _no_gpu_memory(error: BaseException, config: RunConfig | None) -> RunnerError | None:
    text = str(error)
    if not _is(error, "OutOfMemoryError") and not (isinstance(error, RuntimeError) and _OOM_SAID.search(text)):
        return None
    asked, total, mine = _ASKED.search(text), _TOTAL.search(text), _ALLOCATED.search(text)
    who = f"GPU {total[1]}" if total else "the GPU"
    parts = [f"{asked[1]} more were asked for"] if asked else []
    if total:
        parts.append(f"{total[3]} of its {total[2]} are free")
    if mine:
        parts.append(f"this training holds {mine[1]}")
        if mine[2] and _gib(mine[2]) > 1.0:
            parts.append(f"and {mine[2]} that are in pieces too small")
    others = sum(_gib(found) for found in _OTHERS.findall(text))
    if others:
        parts.append(f"other programs hold {others:.2f} GiB")
    return RunnerError(
        f"{who} has no memory left{': ' if parts else ''}{', '.join(parts)}.", hint=_less_memory(config)
    )


def _gib(amount: str) -> float:
    number, unit = amount.split()
    return float(number) * _GIB.get(unit, 0.0)


def _less_memory(config: RunConfig | None) -> str:
    """Which keys to change, what costs least first."""
    if config is None:
        return "Take a smaller batch or shorter sequences."
    runner = config.runner
    if isinstance(runner, SmokeRunner):
        return "Lower runner.batch."
    if isinstance(runner, LoraRunner):
        wishes = [
            ("runner.bf16=true", not runner.bf16),
            ("runner.gradient_checkpointing=true", not runner.gradient_checkpointing),
            ("a smaller runner.batch with more runner.grad_accum", runner.batch > 1),
            ("a shorter runner.seq_len", True),
            ("runner.lora=true", not runner.lora),
            ("runner.strategy=fsdp on several GPUs", runner.strategy != "fsdp"),
        ]
        return f"Set one or more of: {', '.join([wish for wish, useful in wishes if useful][:4])}."
    advice = _advice(config)
    if advice:
        return f"By the estimate these help, in this order: {', '.join(advice)}."
    return (
        "Lower training.micro_batch or training.sequence_length, set training.recompute=full,"
        " or spread the model with training.parallel.tensor."
    )


def _advice(config: RunConfig) -> list[str]:
    """What would save a quarter of the estimated memory."""
    from runners import sizes

    words, tensor = config.model.vocab or config.data.tokenizer_vocab, config.training.parallel.tensor
    vocab = sizes.padded_vocab(words, config.model.vocab_multiple, tensor)
    enough = int(0.75 * sizes.memory(config, vocab).total)
    return [str(advice) for advice in sizes.advice(config, vocab, enough)][:_MOST_ADVICE]


def _no_host_memory(error: BaseException, _config: RunConfig | None) -> RunnerError | None:
    found = _HOST_SAID.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None and not isinstance(error, MemoryError):
        return None
    asked = f": {int(found[1]) / 2**30:.1f} GiB more were asked for" if found else ""
    return RunnerError(
        f"the machine has no memory left{asked}.",
        hint="Start fewer processes or smaller ones, and see what else runs; launcher.memory bounds a container.",
    )


# ---- GPUs and what they speak to each other with

_NCCL_KIND = re.compile(r"\bnccl(?:System|Internal|Remote|Invalid\w*|UnhandledCuda|InProgress)\w*")
_NCCL_LAST = re.compile(r"Last error:\s*\n?\s*(.+)")
_NO_DRIVER = re.compile(r"Found no NVIDIA driver|No HIP GPUs are available|No CUDA GPUs are available")
_OLD_DRIVER = re.compile(
    r"driver on your system is too old \(found version (\d+)\)|driver version is insufficient"
    r"|no kernel image is available|hipErrorNoBinaryForGpu|forward compatibility was attempted"
)
_NO_SUCH = re.compile(r"invalid device ordinal")
_WITHOUT = re.compile(r"Torch not compiled with CUDA enabled")


def _nccl(error: BaseException, config: RunConfig | None) -> RunnerError | None:
    text = str(error)
    kind = _NCCL_KIND.search(text)
    if not isinstance(error, RuntimeError) or "NCCL" not in text:
        return None
    if not _is(error, "DistBackendError") and not (kind and "NCCL error" in text):
        return None
    last = _NCCL_LAST.search(text)
    library = "RCCL" if config is not None and config.training.backend == "rocm" else "NCCL"
    why = last[1].strip()[:_LONGEST].rstrip(". ") if last else kind[0] if kind else _said(error)
    signs = f"{kind[0] if kind else ''} {text}"
    hint = next((mend for sign, mend in _NCCL_HINTS if re.search(sign, signs)), _NCCL_ELSE)
    return RunnerError(f"{library} failed: {why}.", hint=hint)


_NCCL_ELSE = "Set NCCL_DEBUG=INFO in the server's env to see what it tried."
_NCCL_HINTS = (
    (
        r"Duplicate GPU detected",
        "Start at most one process a GPU, and let the launcher set LOCAL_RANK: unset it where you did.",
    ),
    (
        r"shared memory|/dev/shm|posix_fallocate",
        "Give the container more shared memory: launcher.shm, or launcher.ipc=host.",
    ),
    (
        r"out of memory|calloc",
        "The GPU has no memory left for it: lower training.micro_batch, or see what else runs there.",
    ),
    (
        r"no CUDA-capable device|invalid device|driver",
        "See that every rank has a GPU of its own, and what CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hide.",
    ),
    (
        r"ncclRemoteError|remote process exit|Connection (?:closed|reset)",
        "Another process of this run ended: its own message says why.",
    ),
    (
        r"socket|[Cc]onnect|bootstrap|Bootstrap|interface|ncclSystemError",
        "See that the nodes reach each other on all ports, and name the interface: NCCL_SOCKET_IFNAME in the"
        " server's env; NCCL_IB_DISABLE=1 leaves InfiniBand out.",
    ),
)


def _driver(error: BaseException, config: RunConfig | None) -> RunnerError | None:
    if not isinstance(error, (RuntimeError, AssertionError)):
        return None
    text = str(error)
    vendor = "ROCm" if config is not None and config.training.backend == "rocm" else "CUDA"
    hidden = "what CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hide"
    if _OLD_DRIVER.search(text):
        return ConfigurationError(
            f"the GPU's driver and this torch do not fit: {_said(error)}.",
            hint="Take an image whose torch is built for this driver and GPU, or update the server's driver.",
        )
    if _NO_DRIVER.search(text):
        return ConfigurationError(
            f"torch finds no GPU: {_said(error)}.", hint=f"See that the container is given the GPUs, and {hidden}."
        )
    if _NO_SUCH.search(text):
        rank = os.environ.get("LOCAL_RANK", "0")
        return ConfigurationError(
            f"there is no GPU for this process (LOCAL_RANK is {rank}): {_said(error)}.",
            hint=f"Start at most one process a GPU, and see {hidden}.",
        )
    if _WITHOUT.search(text):
        return ConfigurationError(
            f"this torch was built without {vendor}.",
            hint="Take an image with a GPU build of torch, or set training=cpu.",
            every_rank=True,
        )
    return None


# ---- files and the hub

_LACKS = re.compile(r"(\S+) does not appear to have (?:a file|any file|files) named (.+?)\.(?: |$)")
_SAFE_FULL = re.compile(r"os error (?:27|28|122)\b")  # its writer's errors are no OSErrors
_TORCH_FULL = re.compile(r"PytorchStreamWriter failed|unexpected pos \d+ vs \d+")


def _disk(error: BaseException, _config: RunConfig | None) -> RunnerError | None:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    said = _TORCH_FULL if isinstance(error, RuntimeError) else _SAFE_FULL if _is(error, "SafetensorError") else None
    if not full and not (said and said.search(str(error))):
        return None
    where = getattr(error, "filename", None)
    return RunnerError(
        f"no space left on the disk{f' for {where}' if where else ''}.",
        hint="Free some room, or point EKVI_OUT and EKVI_CACHE at a larger disk.",
    )


def _hub(error: BaseException, config: RunConfig | None) -> RunnerError | None:
    """What huggingface_hub says, by itself or within what transformers and datasets make of it."""
    if not type(error).__module__.startswith("huggingface_hub"):
        return None
    from runners import hub

    name, key = _repo(config)
    try:
        with hub.explained(name, key=key, offline=hub.without_network()):
            raise error  # noqa: TRY301 - hub's own table reads what is raised
    except RunnerError as found:
        return found
    except Exception:  # noqa: BLE001 - one that hub does not know either
        return None


def _repo(config: RunConfig | None) -> tuple[str, str]:
    """The repo that a run names, and the key that names it."""
    if config is not None:
        runner = config.runner
        if isinstance(runner, LoraRunner) and runner.model:
            return runner.model, "runner.model"
        weights = getattr(config.model, "weights", None)
        if weights:
            return weights, "model.weights"
    return "the model", "model.weights"


def _file(error: BaseException, config: RunConfig | None) -> RunnerError | None:
    """A file that a folder of the configuration should hold, and does not."""
    lacks = _LACKS.search(str(error)) if isinstance(error, OSError) else None
    if lacks:
        folder, name = lacks[1], lacks[2]
    elif isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        folder, name = os.path.split(error.filename)
    else:
        return None
    key = _key_of(config, os.path.join(folder, name))
    if key is None and not lacks:
        return None
    told = f"{key}: " if key else ""
    return ConfigurationError(
        f"{told}{os.path.join(folder, name)} is not there.",
        hint="A local model needs config.json, its weights and the tokenizer's files: offline nothing is downloaded.",
        every_rank=True,
    )


def _key_of(config: RunConfig | None, path: str) -> str | None:
    """The key of the configuration that names `path`, or a folder that it is in."""
    if config is None:
        return None
    for section, values in config.model_dump(mode="json").items():
        for key, value in values.items():
            for named in value if isinstance(value, list) else [value]:
                if (
                    isinstance(named, str)
                    and os.sep in named
                    and f"{path}{os.sep}".startswith(os.path.join(named, ""))
                ):
                    return f"{section}.{key}"
    return None


_KNOWN: tuple[Callable[[BaseException, Any], RunnerError | None], ...] = (
    _nccl, _no_gpu_memory, _no_host_memory, _driver, _disk, _hub, _file,
)  # fmt: skip
