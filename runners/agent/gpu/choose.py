"""Which sources there are for a vendor, in the order that they are tried, and which vendor's GPUs a machine has.

A source's module is imported only when its turn comes: one that fails at it is a source that does not open.
"""

from __future__ import annotations

import glob
import importlib
import os
from typing import Callable, List, NamedTuple, Optional, Tuple

from .source import FAILED, Source, SourceError

VENDORS = ("nvidia", "amd", "cpu")
SYS = "/sys"
_KNOWN = {
    "nvidia": (("nvml", "nvml", "Nvml"), ("nvidia-smi", "nvidia_smi", "NvidiaSmi")),
    "amd": (
        ("amdgpu-sysfs", "amd_sysfs", "AmdSysfs"),
        ("amdsmi", "amdsmi", "Amdsmi"),
        ("amd-smi", "amd_cli", "AmdSmi"),
        ("rocm-smi", "amd_cli", "RocmSmi"),
    ),
}
_OF_TREE = ("AmdSysfs",)  # are told where sysfs is


class Maker(NamedTuple):
    """A source by its name, and how it is made."""

    name: str
    make: Callable[[], Source]


class Unusable(Source):
    """Stands for a source whose module cannot be imported."""

    def __init__(self, name: str, vendor: str, why: str) -> None:
        super().__init__()
        self.name = name
        self.vendor = vendor
        self.why = why

    def open(self) -> None:
        """Raises SourceError, always."""
        raise SourceError(FAILED, self.why)


def makers(vendor: str, sys_root: str = SYS, named: Optional[str] = None) -> List[Maker]:
    """The sources of `vendor` in order; none for cpu. `named` is "MODULE:CLASS" of a test's own, in their place."""
    if named is not None:
        module, _, name = named.partition(":")
        return [Maker(name, lambda: _made(name, vendor, module, name, sys_root))]
    package = __name__.rpartition(".")[0]

    def maker(name: str, module: str, kind: str) -> Maker:
        return Maker(name, lambda: _made(name, vendor, "%s.%s" % (package, module), kind, sys_root))

    return [maker(*known) for known in _KNOWN.get(vendor, ())]


def sources(vendor: str, sys_root: str = SYS) -> List[Source]:
    """The same, made but not opened."""
    return [maker.make() for maker in makers(vendor, sys_root)]


def _made(name: str, vendor: str, module: str, kind: str, sys_root: str) -> Source:
    try:
        cls = getattr(importlib.import_module(module), kind)
        made = cls(sys_root) if kind in _OF_TREE else cls()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a binding does at its import)
        return Unusable(name, vendor, "its module cannot be imported: %s: %s" % (type(error).__name__, error))
    if not isinstance(made, Source):
        return Unusable(name, vendor, "%s.%s is no Source" % (module, kind))
    return made


def vendor_of(sys_root: str = SYS, dev: str = "/dev", proc: str = "/proc") -> str:
    """nvidia, amd or cpu, by the driver that is loaded here; only sysfs is asked where that is another tree's."""
    if sys_root == SYS:
        nvidia = (dev + "/nvidiactl", proc + "/driver/nvidia", sys_root + "/module/nvidia/version")
        if any(os.path.exists(path) for path in nvidia):
            return "nvidia"
        if os.path.exists(dev + "/kfd"):
            return "amd"
        return "cpu"
    for path in glob.glob(glob.escape(sys_root) + "/class/drm/card*/device/vendor"):
        try:
            with open(path) as f:
                if f.read().strip() == "0x1002":
                    return "amd"
        except OSError:
            continue
    return "cpu"


def numbers(text: str) -> Tuple[int, ...]:
    """GPUs by index: "0-3" or "0,2-4". Raises ValueError."""
    found: List[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    if not found or min(found) < 0:
        raise ValueError(text)
    return tuple(dict.fromkeys(found))
