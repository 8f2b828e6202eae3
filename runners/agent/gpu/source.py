"""What a source of GPU values is, and the fields of schema ekvi.gpu/1 that it may fill.

Ratios are 0..1, bytes and joules and watts and degrees Celsius and MHz are named by their suffix. A value is a
number, a string, a list, or None: unknown, for a reason that `Reasons` keeps; it is never 0 for want of a better one.
A reading holds a field only where the source was asked for it at that moment, so an absent key means "not now", and a
key with None means "asked, and not known".
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Optional, Tuple, TypeVar

_T = TypeVar("_T")

HOT = (
    "util",
    "mem_busy",
    "mem_used",
    "power_w",
    "temp_edge_c",
    "temp_hot_c",
    "temp_mem_c",
    "clk_sm_mhz",
    "clk_min_mhz",
    "clk_max_mhz",
    "clk_mem_mhz",
    "throttle",
)
SLOW = (
    "sm_active",
    "sm_occ",
    "tensor",
    "dram_bw",
    "thr_power",
    "thr_thermal",
    "pcie_tx_bps",
    "pcie_rx_bps",
    "link_tx_bps",
    "link_rx_bps",
)
STATIC = ("mem_total", "power_limit_w", "ecc_corr", "ecc_uncorr", "fan", "procs")
FIELDS = (*HOT, *SLOW, "energy_j", *STATIC)
THROTTLE = ("idle", "power", "thermal", "hw", "sync", "other")

NOT_SUPPORTED = "not_supported"  # the driver or the tool says so of this GPU
NO_PERMISSION = "no_permission"
NOT_FOUND = "not_found"  # an older driver, kernel or tool does not have it
NOT_TOLD = "not_told"  # this source has no such value
SENTINEL = "sentinel"  # all bits set, N/A and the like in the place of a value
BAD_VALUE = "bad_value"  # what was given cannot be true
SHARED = "shared"  # another die or partition of the package speaks for it
FAILED = "failed"  # any other error, with the driver's word for it
CODES = (NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NOT_TOLD, SENTINEL, BAD_VALUE, SHARED, FAILED)

Reading = Dict[str, Any]


class SourceError(Exception):
    """A source cannot be used: `code` is one of CODES, the text one sentence for people, `mend` what helps."""

    def __init__(self, code: str, text: str, mend: Optional[str] = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.mend = mend


class Gone(SourceError):
    """A source that worked does not any more (GPU lost, driver reloaded): it is closed, and opened again later."""


class Reasons:
    """Why fields of one device are None: field -> (code, text), the first reason that was given for each."""

    def __init__(self) -> None:
        self.known: Dict[str, Tuple[str, str]] = {}
        self._new: List[Tuple[str, str, str]] = []

    def none(self, field: str, code: str, text: str) -> Optional[_T]:
        """Note why `field` is None, and return that None."""
        if field not in self.known:
            self.known[field] = (code, text)
            self._new.append((field, code, text))
        return None

    def not_told(self, fields: Iterable[str], text: str) -> None:
        """The source has no such fields."""
        for field in fields:
            self.none(field, NOT_TOLD, text)

    def new(self) -> List[Tuple[str, str, str]]:
        """(field, code, text) of what came since the last call."""
        found, self._new = self._new, []
        return found


class Source:
    """One way to the sensors of one vendor's GPUs. Any call may block, and only its own thread waits then.

    `open` raises SourceError where this way is closed; every other call raises Gone where it has closed since. All
    lists have one entry a device, in the order of `devices`. `hot`, `slow`, `energy` and `static` are each called
    by one thread alone, but `energy` while another may be in `hot`.
    """

    name = ""  # nvml, nvidia-smi, amdgpu-sysfs, amdsmi, amd-smi, rocm-smi
    vendor = ""  # nvidia, amd
    most_hz = 10.0  # asking more often costs more than it tells
    energy_apart = False  # `energy` may block: it is asked in a thread of its own

    def __init__(self) -> None:
        self.version: Optional[str] = None  # of the tool or library
        self.devices: List[Dict[str, Any]] = []
        self.reasons: List[Reasons] = []

    def open(self) -> None:
        """Find the devices: fills `devices` (DEVICE_KEYS each), `reasons` and `version`."""
        raise NotImplementedError

    def hot(self) -> List[Reading]:
        """The HOT fields, at the run's rate."""
        raise NotImplementedError

    def slow(self) -> List[Reading]:
        """The SLOW fields, once a second."""
        return [{} for _ in self.devices]

    def energy(self) -> List[Reading]:
        """`energy_j`: the counter as the hardware keeps it, once a second; only differences mean something.

        `energy_at` (ns, monotonic) beside it where the source knows when it was read; else the middle of the call is.
        """
        return [{} for _ in self.devices]

    def static(self) -> List[Reading]:
        """The STATIC fields, every ten seconds."""
        return [{} for _ in self.devices]

    def events(self) -> List[Dict[str, Any]]:
        """What the driver reported since the last call: {"index", "event": "xid", "value", "text"}; never blocks."""
        return []

    def close(self) -> None:
        """Give everything back; called once, also after Gone."""


DEVICE_KEYS = (
    "index",  # as the vendor's own tools count
    "uuid",
    "bdf",  # domain:bus:device.function, lower case, domain of four digits: 0000:1b:00.0
    "partition",  # id of a partition, None for a whole GPU
    "package_id",  # equal for dies that share a package and its power sensor; None where a device is a package
    "model",
    "compute_mode",  # MIG, SPX, DPX, CPX...; None where there is no such thing
    "memory_mode",  # NPS1, NPS4...
    "driver",
    "runtime",  # "CUDA 13.0", "ROCm 7.1.0": what the driver or the machine offers, not what a container brings
    "vbios",
    "ecc",  # True or False: whether it is on
    "numa_node",
    "mem_total",
    "power_limit_w",
    "power_limit_default_w",
    "power_limit_max_w",
    "power_kind",  # instant, avg1s, socket
    "power_scope",  # gpu, package
    "clk_sm_max_mhz",
    "pcie",  # {"gen", "width"} as negotiated
    "links",  # [{"to": index, "kind": "NVLink"|"XGMI"|"PCIe"..., "count"}], "path" beside PCIe; [] where alone
)


def number(value: Any) -> Optional[float]:
    """A finite number, or None for everything else; bool is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None
