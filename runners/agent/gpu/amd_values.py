"""What an AMD GPU's metrics table says in the words of the schema; sysfs and the binding give the same one."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

from .gpu_metrics import ENERGY_J, Values
from .source import BAD_VALUE, FAILED, NOT_SUPPORTED, NOT_TOLD, SENTINEL, SHARED, Reading, Reasons, number

GROUPS = "add the user to the render and video groups"
NOT_AMD = {  # fields that no source of AMD has, and why
    "sm_active": "AMD's driver counts no active compute units",
    "sm_occ": "AMD's driver counts no waves",
    "tensor": "AMD's driver counts no matrix instructions",
    "dram_bw": "AMD's driver has no counter of memory traffic; on MI300 mem_busy is the share of its bandwidth",
    "pcie_tx_bps": "AMD's driver adds both directions up, in a unit that its sources do not agree on",
    "pcie_rx_bps": "AMD's driver adds both directions up, in a unit that its sources do not agree on",
}
# What one sensor measures for a whole package: only its first die or partition speaks for it.
PACKAGE_POWER = ("power_w", "energy_j", "power_limit_w")
PACKAGE = (
    *PACKAGE_POWER, "mem_busy", "mem_used", "temp_edge_c", "temp_hot_c", "temp_mem_c", "clk_sm_mhz", "clk_min_mhz",
    "clk_max_mhz", "clk_mem_mhz", "throttle", "thr_power", "thr_thermal", "link_tx_bps", "link_rx_bps", "ecc_corr",
    "ecc_uncorr", "fan", "mem_total",
)  # fmt: skip
IDLE = 0.05  # of util: below it nothing holds a clock back
_KB = 1024
_WRAP = 1 << 32
_MOST_C = 250

# Bits of indep_throttle_status (the driver's amdgpu_smu.h): power and current limits, temperatures, PROCHOT.
_POWER_BITS = 0xFF | 0xFF << 16 | 1 << 56
_THERMAL_BITS = ((1 << 46) - 1) & ~((1 << 32) - 1)
_HW_BITS = 0b11 << 46
_HOTSPOT_BIT = 1 << 36
# Bits of throttle_status of MI300 (smu_v13_0_6_pmfw.h): PROCHOT, PPT, socket, voltage regulator, HBM.
_MI300_HW, _MI300_POWER, _MI300_THERMAL = 1, 1 << 1, 0b11100
_COUNTERS = (
    ("ppt", "power"), ("socket_thm", "thermal"), ("vr_thm", "thermal"), ("hbm_thm", "thermal"), ("prochot", "hw"),
)  # fmt: skip


def hot(values: Values, why: Reasons) -> Reading:
    """The HOT fields of a table, all but mem_used and throttle."""
    clocks = clock_range(values.get("gfxclk"))
    out: Reading = {
        "util": ratio(values, "gfx", "util", why),
        "mem_busy": ratio(values, "umc", "mem_busy", why),
        "power_w": power(values, why),
        "clk_sm_mhz": clocks[0],
        "clk_min_mhz": clocks[1],
        "clk_max_mhz": clocks[2],
        "clk_mem_mhz": _one(values, "uclk", "clk_mem_mhz", why),
    }
    if clocks[0] is None:
        for field in ("clk_sm_mhz", "clk_min_mhz", "clk_max_mhz"):
            why.none(field, SENTINEL, "no compute die tells a clock")
    for name, field in (("temp_edge", "temp_edge_c"), ("temp_hot", "temp_hot_c"), ("temp_mem", "temp_mem_c")):
        out[field] = _temperature(values, name, field, why)
    return out


def clock_range(clocks: Optional[Iterable[Any]]) -> Tuple[Optional[float], Optional[float], Optional[float]]:
    """Median, lowest and highest MHz of the compute dies; dies that are off or absent (0, 65535) do not count."""
    told = sorted(c for c in clocks or () if isinstance(c, (int, float)) and 0 < c < 0xFFFF)
    if not told:
        return None, None, None
    half = len(told) // 2
    median = told[half] if len(told) % 2 else (told[half - 1] + told[half]) / 2
    return median, told[0], told[-1]


def ratio(values: Values, name: str, field: str, why: Reasons) -> Optional[float]:
    """0..1 of a percentage."""
    value = _one(values, name, field, why)
    if value is not None and not 0 <= value <= 100:
        return why.none(field, BAD_VALUE, "%g %% is no share" % value)
    return None if value is None else value / 100


def power(values: Values, why: Reasons) -> Optional[float]:
    """W of the socket: MI300 and later tell the current one, MI200 and before an average."""
    name = "power_average" if values.get("power_current") is None and "power_average" in values else "power_current"
    value = _one(values, name, "power_w", why)
    return value if value != 0 else why.none("power_w", BAD_VALUE, "0 W cannot be")


def energy_j(values: Values, why: Reasons) -> Optional[float]:
    """J of the socket's counter. One that stands at 0 does not count: so GPUs answer that have none."""
    count = _one(values, "energy", "energy_j", why)
    if count == 0:
        return why.none("energy_j", BAD_VALUE, "the energy counter stands at 0")
    return None if count is None else count * ENERGY_J


def _one(values: Values, name: str, field: str, why: Reasons) -> Optional[float]:
    if name not in values:
        return why.none(field, NOT_TOLD, "the driver's table has no such value for this GPU")
    value = number(values[name])
    if value is None:
        return why.none(field, SENTINEL, "the driver leaves the value's place empty")
    return value


def _temperature(values: Values, name: str, field: str, why: Reasons) -> Optional[float]:
    value = _one(values, name, field, why)
    if value is not None and value > _MOST_C:
        return why.none(field, BAD_VALUE, "%g degrees Celsius cannot be" % value)
    return value


class Residency:
    """Which share of the time the firmware held the clocks back, and for what: from the counters of MI300 and later.

    The firmware of some GPUs lets a counter run along with the accumulation counter from boot on: a counter that is
    equal to it at both ends of an interval says nothing.
    """

    def __init__(self) -> None:
        self._before: Optional[Values] = None
        self._shares: Optional[Dict[str, Optional[float]]] = None

    def step(self, values: Values) -> Optional[Dict[str, Optional[float]]]:
        """Share 0..1 of each counter since the call before (None: it says nothing); None where nothing is known yet.

        Where the firmware has not counted on, the shares are those of the step before.
        """
        before, now = self._before, values
        if number(now.get("acc")) is None:
            return None
        if before is None:
            self._before = now
            return None
        passed = _since(before["acc"], now["acc"])
        if passed == 0:
            return self._shares
        self._before = now
        if passed is None:  # counted anew: the driver was loaded again
            self._shares = None
            return None
        self._shares = {name: _share(name, before, now, passed) for name, _ in _COUNTERS}
        return self._shares

    @staticmethod
    def reasons(shares: Dict[str, Optional[float]], util: Optional[float]) -> Optional[List[str]]:
        """The schema's reasons of throttling; None where counters that say nothing leave it open."""
        found = {what for name, what in _COUNTERS if (shares[name] or 0) > 0}
        if not found and any(shares[name] is None for name, _ in _COUNTERS) and (util is None or util > IDLE):
            return None
        return sorted(found)


def _share(name: str, before: Values, now: Values, passed: int) -> Optional[float]:
    first, last = number(before.get(name)), number(now.get(name))
    if first is None or last is None or (first == before["acc"] and last == now["acc"]):
        return None
    grown = _since(int(first), int(last))
    if grown is None or grown > passed + max(2, passed // 50):
        return None
    return min(grown / passed, 1.0)


def _since(first: int, last: int) -> Optional[int]:
    """How far a counter came; it may have passed 32 bits once. None where it was set back."""
    if last >= first:
        return last - first
    grown = last - first + _WRAP
    return grown if 0 <= grown < _WRAP // 2 and first < _WRAP else None


class Throttle:
    """The `throttle` field of one GPU, by what its table has: residencies, or bits."""

    def __init__(self, rdna3: Optional[bool]) -> None:
        """`rdna3` None: it is not known which generation the GPU is of."""
        self._hotspot = rdna3 is False  # RDNA3 sets the hotspot bit always: it means something elsewhere only
        self._residency = Residency()

    def told(self, values: Values, util: Optional[float], why: Reasons) -> Optional[List[str]]:
        """The reasons that hold now, [] for none of them."""
        if "acc" in values:
            return self._counted(values, util, why)
        bits = values.get("indep_throttle")
        if isinstance(bits, bool):  # the amdsmi binding keeps no more than this of it
            if not bits:
                return []
            text = "the library only says that something throttles"
            return ["other"] if self._hotspot else why.none("throttle", BAD_VALUE, text)
        if isinstance(bits, int):
            return throttle_bits(bits, self._hotspot)
        bits = values.get("throttle")
        if isinstance(bits, int) and not isinstance(bits, bool):
            return _mi300_bits(bits)
        return why.none("throttle", NOT_TOLD, "the driver's table has no reasons for this GPU")

    def _counted(self, values: Values, util: Optional[float], why: Reasons) -> Optional[List[str]]:
        shares = self._residency.step(values)
        if shares is None:
            if number(values.get("acc")) is None:
                why.none("throttle", SENTINEL, "the driver leaves the throttle counters empty")
            return None  # a second reading is needed: this is no property of the GPU
        found = self._residency.reasons(shares, util)
        if found is None:
            why.none("throttle", BAD_VALUE, "the throttle counters run along with the accumulation counter")
        return found


def throttle_bits(bits: int, hotspot: bool) -> List[str]:
    """The schema's reasons in an indep_throttle_status; without `hotspot` that bit is passed over."""
    if not hotspot:
        bits &= ~_HOTSPOT_BIT
    found = []
    for name, mask in (("power", _POWER_BITS), ("thermal", _THERMAL_BITS), ("hw", _HW_BITS)):
        if bits & mask:
            found.append(name)
    if bits & ~(_POWER_BITS | _THERMAL_BITS | _HW_BITS):
        found.append("other")
    return sorted(found)


def _mi300_bits(bits: int) -> List[str]:
    found = []
    for name, mask in (("power", _MI300_POWER), ("thermal", _MI300_THERMAL), ("hw", _MI300_HW)):
        if bits & mask:
            found.append(name)
    if bits & ~(_MI300_POWER | _MI300_THERMAL | _MI300_HW):
        found.append("other")
    return sorted(found)


class Slow:
    """The SLOW fields of one GPU: shares and rates since the call before."""

    def __init__(self) -> None:
        self._residency = Residency()
        self._links: Optional[Tuple[float, int, int]] = None  # seconds, KB read, KB written

    def told(self, values: Values, t_s: float, why: Reasons) -> Reading:
        """`t_s` is when the table was read, on any clock that only goes forward."""
        out: Reading = {field: why.none(field, NOT_TOLD, text) for field, text in NOT_AMD.items()}
        out.update(self._throttled(values, why))
        out.update(self._linked(values, t_s, why))
        return out

    def _throttled(self, values: Values, why: Reasons) -> Reading:
        fields = ("thr_power", "thr_thermal")
        if number(values.get("acc")) is None:
            text = "this GPU has no counters of the time that it throttles"
            return {field: why.none(field, NOT_SUPPORTED, text) for field in fields}
        shares = self._residency.step(values)
        if shares is None:
            return dict.fromkeys(fields)
        hottest = [shares[name] for name, what in _COUNTERS if what == "thermal"]
        known = [share for share in hottest if share is not None]
        out: Reading = {"thr_power": shares["ppt"], "thr_thermal": max(known) if known else None}
        for field, value in out.items():
            if value is None:
                why.none(field, BAD_VALUE, "the counter runs along with the accumulation counter")
        return out

    def _linked(self, values: Values, t_s: float, why: Reasons) -> Reading:
        totals = [[kb for kb in values.get(name) or () if kb is not None] for name in ("xgmi_read", "xgmi_write")]
        if not totals[0] or not totals[1]:
            text = "the driver counts no bytes on XGMI links of this GPU"
            return {field: why.none(field, NOT_SUPPORTED, text) for field in ("link_rx_bps", "link_tx_bps")}
        read, written = sum(totals[0]), sum(totals[1])
        before, self._links = self._links, (t_s, read, written)
        if before is None or t_s <= before[0] or read < before[1] or written < before[2]:
            return {"link_rx_bps": None, "link_tx_bps": None}
        dt = t_s - before[0]
        return {"link_rx_bps": (read - before[1]) * _KB / dt, "link_tx_bps": (written - before[2]) * _KB / dt}


def leave_to_package(reading: Reading, part: str, fields: Iterable[str], why: Reasons) -> Reading:
    """A die or partition whose package has one sensor: its other speaks for these fields."""
    for field in fields:
        if field in reading:
            reading[field] = why.none(field, SHARED, part)
    return reading


def secondary_power(reading: Reading, why: Reasons) -> Reading:
    """The odd die of an MI250: it tells 0 where the even one tells the whole package."""
    for field in PACKAGE_POWER:
        if field in reading and not reading[field]:
            reading[field] = why.none(field, SHARED, "the first die of the package tells it for both")
    return reading


def settle(reading: Reading, told: Reasons, why: Reasons) -> None:
    """Keep the reasons of `told` for what is None in the end."""
    for field, (code, text) in list(told.known.items()):  # other threads add to it
        if field in reading and reading[field] is None:
            why.none(field, code, text)


def none_for_all(fields: Iterable[str], text: str, why: Reasons, code: str = FAILED) -> Reading:
    """These fields, unknown for one reason."""
    return {field: why.none(field, code, text) for field in fields}


def is_two_dies(model: Optional[str], device_id: Optional[str]) -> bool:
    """Whether the model has two dies in a package, each a GPU of its own: MI250 and MI250X."""
    name = (model or "").upper()
    return device_id in ("0x7408", "0x740c") or "MI250" in name or "MI200 (MCM)" in name


def pair_dies(devices: List[Dict[str, Any]], two: List[bool]) -> List[bool]:
    """Give the dies of a package, which follow each other by bus address, one `package_id`; True for each second one.

    A die that is left over is alone in this list (a part of the machine is shown only) and speaks for itself.
    """
    second = [False] * len(devices)
    dies = [i for i, is_die in enumerate(two) if is_die]
    if len(dies) % 2:
        return second
    for a, b in zip(dies[::2], dies[1::2]):  # noqa: B905
        for i in (a, b):
            devices[i]["package_id"] = devices[a]["bdf"]
            devices[i]["power_scope"] = "package"
        second[b] = True
    return second
