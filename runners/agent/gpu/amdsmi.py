"""AMD's GPUs by the amdsmi binding that stands beside its library in a ROCm installation, and by no other.

A binding of another version than its library fails at import, or writes past the structures that it made: so the
binding and the library of one folder are taken, and this runs in a process of its own. The binding prints to standard
output when it is unhappy, also at import.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import amd_tree, amd_values
from .amdsmi_binding import Refused, call, imported
from .gpu_metrics import Values
from .source import (
    DEVICE_KEYS,
    FAILED,
    HOT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    SLOW,
    STATIC,
    Gone,
    Reading,
    Reasons,
    Source,
    SourceError,
    number,
)

_MIB = 1 << 20
_MOST_CAP_W = 100_000  # a cap above is told in microwatts: the unit changed between versions
_SENTINELS = (0xFFFF, 0xFFFFFFFF, 2**64 - 1)
_COUNTER_SENTINELS = (0xFFFFFFFF, 2**64 - 1)
_OTHER = "the first partition of the GPU tells it for all"
_NAMES = {  # of the binding's metrics, over its versions and GPUs: the first that tells something counts
    "temp_edge": ("temperature_edge",),
    "temp_hot": ("temperature_hotspot",),
    "temp_mem": ("temperature_mem",),
    "gfx": ("average_gfx_activity",),
    "umc": ("average_umc_activity",),
    "power_average": ("average_socket_power",),
    "power_current": ("current_socket_power",),
    "energy": ("energy_accumulator", "power"),
    "gfxclk": ("current_gfxclks", "current_gfxclk"),
    "uclk": ("current_uclk",),
    "xgmi_read": ("xgmi_read_data_acc",),
    "xgmi_write": ("xgmi_write_data_acc",),
    "indep_throttle": ("indep_throttle_status",),
    "acc": ("accumulation_counter",),
    "prochot": ("prochot_residency_acc",),
    "ppt": ("ppt_residency_acc",),
    "socket_thm": ("socket_thm_residency_acc",),
    "vr_thm": ("vr_thm_residency_acc",),
    "hbm_thm": ("hbm_thm_residency_acc",),
    "xcp_busy": ("xcp_stats.gfx_busy_inst",),
}
_COUNTERS = frozenset(
    (
        "energy",
        "xgmi_read",
        "xgmi_write",
        "acc",
        "prochot",
        "ppt",
        "socket_thm",
        "vr_thm",
        "hbm_thm",
        "indep_throttle",
    )
)


class Amdsmi(Source):
    """One call a GPU and tick gives nearly everything; the others would read the same table again."""

    name = "amdsmi"
    vendor = "amd"

    def __init__(self, sys_root: str = "/sys") -> None:
        super().__init__()
        self._sys = sys_root
        self._lib: Any = None
        self._gpus: List[_Gpu] = []

    def open(self) -> None:
        """Raises SourceError where there is no ROCm, its binding does not fit its library, or it sees no GPU."""
        self._lib = imported()
        try:
            call(self._lib, "amdsmi_init")
            handles = call(self._lib, "amdsmi_get_processor_handles")
        except Refused as refused:
            raise SourceError(refused.code, refused.text, _mend(refused.code)) from refused
        if not handles:
            text = "the library sees no GPU; it sees none where librocm_smi64 was loaded into the same process"
            raise SourceError(NOT_FOUND, text, amd_values.GROUPS)
        self._cards = amd_tree.find(self._sys)
        self._gpus = [_Gpu(self._lib, handle, index, self._cards) for index, handle in enumerate(handles)]
        self.devices = [gpu.device for gpu in self._gpus]
        self.reasons = [gpu.why for gpu in self._gpus]
        two = [
            gpu.device["partition"] is None and amd_values.is_two_dies(gpu.device["model"], None)
            for gpu in self._gpus
        ]
        for gpu, second in zip(self._gpus, amd_values.pair_dies(self.devices, two)):  # noqa: B905
            gpu.second_die = second
        self.version = getattr(self._lib, "__version__", None)

    def hot(self) -> List[Reading]:
        """A GPU that is busy for the library has no fields in this tick. Raises Gone where the driver left."""
        return [gpu.hot() for gpu in self._gpus]

    def slow(self) -> List[Reading]:
        """Rates are None at the first call."""
        return [gpu.slow() for gpu in self._gpus]

    def energy(self) -> List[Reading]:
        """J of the socket."""
        return [gpu.energy() for gpu in self._gpus]

    def static(self) -> List[Reading]:
        """The processes come from the compute driver: the library may start a context on the GPU for them."""
        procs = amd_tree.users(self._sys, self._cards)
        return [gpu.static(procs) for gpu in self._gpus]

    def close(self) -> None:
        """Shut the library down."""
        if self._lib is not None:
            with contextlib.suppress(Refused, Gone):
                call(self._lib, "amdsmi_shut_down")
            self._lib = None


class _Gpu:
    """One processor handle of the library."""

    def __init__(self, lib: Any, handle: Any, index: int, cards: List[amd_tree.Card]) -> None:
        self.why = Reasons()
        self._told_why = Reasons()  # what was given first; kept where the field is not another's to tell
        self.second_die = False
        self._lib = lib
        self._handle = handle
        self._denied: Dict[str, Refused] = {}
        about = _about(self._told, self._word)
        self._place = _place(about, cards)
        self.device = _device(index, about, cards[self._place].device if self._place is not None else None)
        self._throttle = amd_values.Throttle(about.gfx.startswith("gfx11") if about.gfx else None)
        self._slow = amd_values.Slow()

    def hot(self) -> Reading:
        """The HOT fields."""

        def of(values: Values) -> Reading:
            out = amd_values.hot(values, self._told_why)
            if self.device["partition"] is not None:
                out["util"] = self._partition_util(values)
            out["mem_used"] = self._mib("vram_used", "mem_used")
            out["throttle"] = self._throttle.told(values, out["util"], self._told_why)
            return out

        return self._read(HOT, of)

    def slow(self) -> Reading:
        """The SLOW fields."""
        return self._read(SLOW, lambda values: self._slow.told(values, time.monotonic(), self._told_why))

    def energy(self) -> Reading:
        """The counter of the socket."""
        return self._read(("energy_j",), lambda values: {"energy_j": amd_values.energy_j(values, self._told_why)})

    def static(self, procs: Optional[List[List[Dict[str, Any]]]]) -> Reading:
        """The STATIC fields."""
        out: Reading = dict.fromkeys(STATIC)
        out["mem_total"] = self._mib("vram_total", "mem_total")
        out["power_limit_w"] = self._told("power_limit_w", lambda cap: _cap_w(cap.get("power_cap")), "power_cap_info")
        out["ecc_corr"] = self._errors("ecc_corr", "correctable_count")
        out["ecc_uncorr"] = self._errors("ecc_uncorr", "uncorrectable_count")
        out["fan"] = self._fan()
        if procs is not None and self._place is not None:
            out["procs"] = procs[self._place]
        else:
            self.why.none("procs", NOT_FOUND, "the compute driver (/sys/class/kfd) does not show this GPU here")
        return self._mine(out)

    def _read(self, fields: Tuple[str, ...], of: Callable[[Values], Reading]) -> Reading:
        """What `of` makes of the metrics; nothing where the library is busy."""
        try:
            out = of(normalized(self._ask("amdsmi_get_gpu_metrics_info", self._handle)))
        except Refused as refused:
            if refused.again:
                return {}
            out = amd_values.none_for_all(fields, refused.text, self._told_why, refused.code)
        return self._mine(out)

    def _errors(self, field: str, key: str) -> Optional[float]:
        value = self._told(field, lambda counts: clean(counts.get(key)), "gpu_total_ecc_count")
        return number(value)

    def _ask(self, name: str, *args: Any) -> Any:
        """The answer of one function. One that is denied is not asked again."""
        if name in self._denied:
            raise self._denied[name]
        try:
            return call(self._lib, name, *args)
        except Refused as refused:
            if refused.code in (NO_PERMISSION, NOT_FOUND):
                self._denied[name] = refused
            raise

    def _told(self, field: Optional[str], of: Callable[[Any], Any], name: str, *args: Any) -> Any:
        """`of` the answer of amdsmi_get_<name>, or None with its reason."""
        try:
            value = of(self._ask("amdsmi_get_" + name, self._handle, *args))
        except Refused as refused:
            code, text = refused.code, refused.text
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            code, text = FAILED, "amdsmi_get_%s answered in a form that is not known: %s" % (name, error)
        else:
            if value is not None:
                return value
            code, text = NOT_SUPPORTED, "amdsmi_get_%s has no value" % name
        return self._told_why.none(field, code, text) if field else None

    def _word(self, name: str, key: Optional[str] = None) -> Optional[str]:
        """A word of the identity; "N/A" and the like are None."""

        def of(answer: Any) -> Optional[str]:
            word = answer if key is None else answer.get(key)
            return None if word is None or str(word).strip() in ("", "N/A") else str(word).strip()

        found = self._told(None, of, name)
        return found if isinstance(found, str) else None

    def _mib(self, key: str, field: str) -> Optional[float]:
        value = self._told(field, lambda vram: clean(vram.get(key)), "gpu_vram_usage")
        return None if value is None else value * _MIB

    def _fan(self) -> Optional[float]:
        now = self._told("fan", number, "gpu_fan_speed", 0)
        most = self._told("fan", number, "gpu_fan_speed_max", 0)
        return None if now is None or not most else min(now / most, 1.0)

    def _partition_util(self, values: Values) -> Optional[float]:
        busy = values.get("xcp_busy")
        mine = busy[self.device["partition"]] if busy and self.device["partition"] < len(busy) else []
        told = [value for value in mine if value is not None and value <= 100]
        if not told:
            return self._told_why.none("util", NOT_SUPPORTED, "the library tells the use of no single partition")
        return float(sum(told)) / len(told) / 100

    def _mine(self, out: Reading) -> Reading:
        """Without what another die or partition of the package speaks for; then the reasons of what is None."""
        if self.device["partition"]:
            out = amd_values.leave_to_package(out, _OTHER, amd_values.PACKAGE, self.why)
        elif self.second_die:
            out = amd_values.secondary_power(out, self.why)
        amd_values.settle(out, self._told_why, self.why)
        return out


class _About(NamedTuple):
    """What the library says of one GPU."""

    bdf: Optional[str]
    partition: int
    words: Dict[str, Optional[str]]
    gfx: str
    mem_total: Optional[float]
    caps: Tuple[Optional[float], Optional[float], Optional[float]]


def normalized(info: Dict[str, Any]) -> Values:
    """The binding's metrics by the names of `gpu_metrics`, with None for "N/A" and for all bits set."""
    out: Values = {}
    for name, keys in _NAMES.items():
        for key in keys:
            if key in info:
                out[name] = _cleaned(info[key], name in _COUNTERS)
                if out[name] is not None and not _is_empty(out[name]):
                    break
    if isinstance(out.get("gfxclk"), (int, float)) or out.get("gfxclk") is None:
        out["gfxclk"] = [out.get("gfxclk")]
    if number(out.get("acc")) is None:  # an older GPU: the structure has a place for it all the same
        out.pop("acc", None)
    if out.get("indep_throttle") is None:
        out.pop("indep_throttle", None)
    return out


def clean(value: Any) -> Optional[float]:
    """A number, or None for text, "N/A" and all bits set."""
    value = number(value)
    return None if value in _SENTINELS else value


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and all(item is None for item in value)


def _cleaned(value: Any, counter: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cleaned(item, counter) for item in value]
    if isinstance(value, bool):
        return value
    value = number(value)
    return None if value in (_COUNTER_SENTINELS if counter else _SENTINELS) else value


def _cap_w(value: Any) -> Optional[float]:
    told = clean(value)
    if not told:
        return None
    return told / 1e6 if told > _MOST_CAP_W else told


def _mend(code: str) -> Optional[str]:
    return amd_values.GROUPS if code == NO_PERMISSION else None


def _about(told: Callable[..., Any], word: Callable[..., Optional[str]]) -> _About:
    asic = told(None, dict, "gpu_asic_info") or {}
    kfd = told(None, dict, "gpu_kfd_info") or {}
    cap = told(None, dict, "power_cap_info") or {}
    partition = clean(kfd.get("current_partition_id"))
    serial = str(asic.get("asic_serial") or "").lower()
    words = {
        "uuid": "GPU-" + serial[2:].zfill(16) if serial.startswith("0x") else None,
        "model": None if asic.get("market_name") in (None, "", "N/A") else str(asic["market_name"]).strip("\0 "),
        "driver": word("gpu_driver_info", "driver_version"),
        "vbios": word("gpu_vbios_info", "part_number") or word("gpu_vbios_info", "version"),
        "compute_mode": word("gpu_compute_partition"),
        "memory_mode": word("gpu_memory_partition"),
    }
    mem = told(None, lambda vram: clean(vram.get("vram_total")), "gpu_vram_usage")
    caps = (_cap_w(cap.get("power_cap")), _cap_w(cap.get("default_power_cap")), _cap_w(cap.get("max_power_cap")))
    gfx = str(asic.get("target_graphics_version") or "")
    return _About(
        word("gpu_device_bdf"), int(partition or 0), words, gfx if gfx not in ("gfx0", "N/A") else "",
        None if mem is None else mem * _MIB, caps,
    )  # fmt: skip


def _place(about: _About, cards: List[amd_tree.Card]) -> Optional[int]:
    """Which device of sysfs this is. The library may put the partition's number in the place of the function."""
    if about.bdf is None:
        return None
    for i, card in enumerate(cards):
        bdf = card.device["bdf"]
        if card.partition == about.partition and about.bdf.lower() in (bdf, "%s%d" % (bdf[:-1], about.partition)):
            return i
    return None


def _device(index: int, about: _About, seen: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """What the library says, and what sysfs says where it does not."""
    bdf = about.bdf.lower() if about.bdf else None
    device: Dict[str, Any] = {**dict.fromkeys(DEVICE_KEYS), "links": []}
    device.update(seen or {})
    version = amd_tree.rocm()
    for key, value in about.words.items():
        device[key] = value if value is not None else device[key]
    parted = about.partition > 0 or device["compute_mode"] not in (None, "SPX", "N/A")
    if parted and bdf is not None and bdf.endswith(".%d" % about.partition):
        bdf = bdf[:-1] + "0"
    whole = about.partition == 0
    device.update(
        index=index,
        bdf=bdf,
        partition=about.partition if parted else None,
        package_id=bdf if parted else None,
        runtime="ROCm " + version if version else None,
        mem_total=about.mem_total if whole else None,
        power_limit_w=about.caps[0] if whole else None,
        power_limit_default_w=about.caps[1] if whole else None,
        power_limit_max_w=about.caps[2] if whole else None,
        power_kind="socket",
        power_scope="package" if parted else "gpu",
    )
    return device
