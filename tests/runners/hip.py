"""`python hip.py WORD...`: the runners under a torch that says it was built for ROCm, on a machine without a GPU.

Faked is only what stands between torch and the device: the build's name, what the driver tells of an MI300X, and that
a GPU's tensors lie in the host's memory, with gloo in RCCL's place. The runners and megatron-core are the real ones.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

CARD = SimpleNamespace(
    name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", major=9, minor=4, multi_processor_count=304,
    total_memory=192 << 30, warp_size=64, uuid=None,
)  # fmt: skip
DRIVER = {
    "is_available": True,
    "device_count": 2,
    "current_device": 0,
    "set_device": None,
    "get_device_properties": CARD,
    "get_device_name": CARD.name,
    "get_device_capability": (CARD.major, CARD.minor),
    "is_bf16_supported": True,
    "synchronize": None,
    "max_memory_allocated": 1 << 20,
    "mem_get_info": (CARD.total_memory // 2, CARD.total_memory),
}


_Generator = torch.Generator


class Generator:
    """A GPU's generator, on the host; a class, since libraries name it in their annotations."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """The host's."""
        return _Generator(_host(device))


class Event:
    """A time by the host's clock, as torch.cuda.Event says it."""

    def __init__(self, **_options: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        """Note the time."""
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is behind on the host."""

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds."""
        return (other.at - self.at) * 1e3


class HostMemory(TorchFunctionMode):
    """A GPU's tensors are made and kept on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` with every GPU in its arguments turned into the host."""
        if func is torch.Tensor.cuda:
            return args[0]
        kwargs = dict(kwargs or {})
        if func is torch.device:  # a GPU may be named; only its tensors lie elsewhere
            return func(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = _host(kwargs["device"], index=True)
        return func(*(_host(arg) for arg in args), **kwargs)


def _host(value: Any, *, index: bool = False) -> Any:
    """The host for what names a GPU: a device, its text, and, as `device=`, its number."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    return "cpu" if index and isinstance(value, int) else value


def pretend() -> None:
    """Give torch HIP's names, for the rest of this process."""
    torch.version.hip, torch.version.cuda = "7.2.53211", None
    for name, answer in DRIVER.items():
        setattr(torch.cuda, name, lambda *_args, answer=answer, **_options: answer)
    torch.cuda.Event = Event
    torch.cuda.nccl = SimpleNamespace(version=lambda: (2, 27, 7))
    torch.cuda.tunable = SimpleNamespace(enable=lambda _on: None)
    torch.Generator = Generator
    torch.Tensor.pin_memory = lambda tensor: tensor  # from threads too, which no mode reaches
    torch.nn.Module.cuda = lambda module, _device=None: module
    _types()
    _collectives()
    HostMemory().__enter__()


def _types() -> None:
    """megatron-core asks a parameter's type by name before it optimises it."""
    real = torch.Tensor.type

    def typed(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        found = real(tensor, *args, **options)
        if args or options or "cuda" in found:
            return found
        return found.replace("torch.", "torch.cuda.")

    torch.Tensor.type = typed


def _collectives() -> None:
    real = dist.init_process_group

    def join(collective: str, *args: Any, **options: Any) -> None:
        options.pop("device_id", None)
        assert collective == "nccl", f"GPUs meet over {collective}"
        real("gloo", *args, **options)

    dist.init_process_group = join


if __name__ == "__main__":
    pretend()
    from runners.__main__ import leave, main

    leave(main(sys.argv[1:]))
