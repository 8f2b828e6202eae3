"""The process group of a run: joined once, left at the end, its failures in plain words."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from runners import meeting, trouble
from runners.errors import ConfigurationError, RunnerError
from runners.process import Process

# How gloo and NCCL say that a peer has gone; everything else is an error of its own.
_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Timed out waiting|[Tt]imed out|remote error",
)
YIELD_S = 3.0  # until another node's launcher has seen which of its processes ended, and said so
TIMEOUT_S = 600.0  # for the processes to meet and for every collective; EKVI_RENDEZVOUS_TIMEOUT_S says otherwise


@contextmanager
def joined(process: Process, collective: str) -> Iterator[None]:
    """Join the run's processes in a group, and leave it at the end.

    A process that no launcher has started makes a group of its own, without a port. Raises RunnerError where the
    processes do not meet in time, ConfigurationError for a timeout that is no number.
    """
    seconds = timeout_s()
    try:
        if process.launched and meeting.several_nodes() and collective == "gloo":
            shared, wait = meeting.store(seconds), timedelta(seconds=seconds)
            dist.init_process_group(
                collective, store=shared, rank=process.rank, world_size=process.world, timeout=wait
            )
        elif process.launched:
            own = torch.device("cuda", process.local_rank) if collective == "nccl" else None
            dist.init_process_group(collective, timeout=timedelta(seconds=seconds), device_id=own)
        else:
            dist.init_process_group(collective, store=dist.HashStore(), rank=0, world_size=1)
    except (RuntimeError, ValueError, OSError) as error:  # torch's DistError is a RuntimeError
        known = trouble.understood(error)
        if known is not None:  # NCCL's own, not that they did not meet
            raise known from error
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        said = str(error).strip().splitlines() or [type(error).__name__]
        if not process.launched:
            raise RunnerError(
                f"no process group: {collective} does not start on this machine ({said[0].rstrip('.')}).",
                hint="It needs a network interface, if only the loopback one.",
            ) from error
        raise RunnerError(
            f"no process group: rank {process.rank} of {process.world} did not meet the others at {where} within"
            f" {seconds:g} s ({said[0].rstrip('.')}).",
            hint="Start all processes with one torchrun command, and see that this address is reachable.",
        ) from error
    whole = False
    try:
        yield
        whole = True
    except RuntimeError as error:
        lost = _LOST.search(str(error))
        if lost is None:
            raise
        if meeting.several_nodes():
            time.sleep(YIELD_S)
        raise RunnerError(
            f"rank {process.rank} of {process.world} lost its peers ({lost[0]}): another process of this run ended"
            " or hung.",
            hint="Its own message says why.",
        ) from error
    finally:
        # NCCL takes leave of all peers together, and after an error they may wait in a collective for this one, for
        # as long as its timeout is: then the end of the process does it.
        if whole or collective != "nccl":
            dist.destroy_process_group()


def timeout_s() -> float:
    """How long processes wait for each other, in seconds."""
    given = os.environ.get("EKVI_RENDEZVOUS_TIMEOUT_S")
    try:
        return float(given) if given else TIMEOUT_S
    except ValueError:
        raise ConfigurationError(f"EKVI_RENDEZVOUS_TIMEOUT_S={given!r} is not a number of seconds.") from None


def device_of(process: Process, gpus: int) -> str:
    """The device of a process on a machine with `gpus` GPUs: "cpu" where there are none, else one GPU a process.

    Raises ConfigurationError for a rank without a GPU. ROCm's GPUs are "cuda" to torch as well.
    """
    if gpus == 0:
        return "cpu"
    if process.local_rank >= gpus:
        raise ConfigurationError(
            f"rank {process.rank} has no GPU: LOCAL_RANK is {process.local_rank}, but this machine shows"
            f" {gpus} GPU{'s' if gpus > 1 else ''} (0 to {gpus - 1}).",
            hint="Start at most one process a GPU, and see what CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hide.",
        )
    return f"cuda:{process.local_rank}"


def collective_of(device: str) -> str:
    """torch.distributed's backend for a device: gloo on the host, nccl on GPUs (RCCL on ROCm goes by that name)."""
    return "nccl" if device.startswith("cuda") else "gloo"


def gpu_count() -> int:
    """How many GPUs torch sees."""
    count: int = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count
