"""What of one NVIDIA GPU is read once a second: GPM between two samples (from Hopper on), and counters' steps."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .nvml_calls import GONE, UNKNOWN_RC, Door, Field, Fields, Probe, code_of, said
from .nvml_hot import SHARE_S, throttled_share
from .source import BAD_VALUE, FAILED, NOT_SUPPORTED, SHARED, Gone, Reading, Reasons

_MIB = 1024.0 * 1024.0
_32_BITS = 1 << 32
_LEAST_S = 0.1  # two samples nearer than this tell nothing
_METRICS = (  # GPM metric, field, factor, the most that can be true
    (2, "sm_active", 0.01, 1.0),
    (3, "sm_occ", 0.01, 1.0),
    (5, "tensor", 0.01, 1.0),
    (10, "dram_bw", 0.01, 1.0),
    (20, "pcie_tx_bps", _MIB, 1e13),
    (21, "pcie_rx_bps", _MIB, 1e13),
    (61, "link_tx_bps", _MIB, 1e13),
    (60, "link_rx_bps", _MIB, 1e13),
)
_ONLY_GPM = ("sm_active", "sm_occ", "tensor", "dram_bw")
_OF_PACKAGE = ("pcie_tx_bps", "pcie_rx_bps", "link_tx_bps", "link_rx_bps")
_CLOSE_S = 1.0
_ROUNDING = 1.02  # a busy ratio a little above 1 is one: the two clocks of a difference are not read at one moment

Clock = Callable[[], float]


class Gpm:
    """The metrics of one GPU, or of one MIG instance by its id. A call at a time; nothing is kept but two samples."""

    def __init__(self, door: Door, handle: Any, instance: Optional[int], reasons: Reasons, clock: Clock) -> None:
        self._nvml, self._reasons, self._clock = door.nvml, reasons, clock
        self.refused: Dict[str, Tuple[str, str]] = {}
        self._samples: List[Any] = []
        self._get = door.find("nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet")
        self._args = (handle,) if instance is None else (handle, ctypes.c_uint(instance))
        self._metrics = door.find("nvmlGpmMetricsGet")
        self._ask: Any = None
        self._at: Optional[float] = None
        why = self._why_not(handle)
        if why is None:
            self._ask = self._request()
        else:
            self._refuse_all(*why)

    def read(self, reading: Reading) -> None:
        """Fill what GPM tells of the time since the call before: nothing at the first. Raises Gone."""
        if self._ask is None:
            return
        now = self._clock()
        if self._at is not None and now - self._at < _LEAST_S:
            return
        name, get = self._get
        rc = get(*self._args, self._samples[1])
        if rc:
            self._failed(name, rc)
            return
        before, self._at = self._at, now
        if before is not None:
            self._difference(reading)
        self._samples.reverse()

    def close(self) -> None:
        """Give the samples back."""
        for sample in self._samples:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                continue
        self._samples, self._ask = [], None

    def _why_not(self, handle: Any) -> Optional[Tuple[str, str]]:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return NOT_SUPPORTED, "GPM needs a GPU of the Hopper generation or later"
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())
        except nvml.NVMLError as e:
            return code_of(e.value), said("GPM", e.value)
        if self._get[1] is None or self._metrics[1] is None:
            return code_of(13), said(self._get[0] if self._get[1] is None else self._metrics[0], 13)
        return None

    def _request(self) -> Any:
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_METRICS)
        for i, (metric, *_) in enumerate(_METRICS):
            request.metrics[i].metricId = metric
        return request

    def _difference(self, reading: Reading) -> None:
        request = self._ask
        request.sample1, request.sample2 = self._samples[0], self._samples[1]
        name, get = self._metrics
        rc = get(ctypes.byref(request))
        if rc:
            self._failed(name, rc)
            return
        for i, (metric, field, factor, most) in enumerate(_METRICS):
            told = request.metrics[i]
            if told.nvmlReturn:
                self.refused[field] = (code_of(told.nvmlReturn), said("GPM metric %d" % metric, told.nvmlReturn))
                continue
            value = told.value * factor
            if math.isfinite(value) and 0 <= value <= most * _ROUNDING:
                reading[field] = min(value, most)
            else:
                self.refused[field] = (BAD_VALUE, "GPM metric %d was %r" % (metric, told.value))

    def _failed(self, name: str, rc: int) -> None:
        if rc in GONE or (rc == UNKNOWN_RC and self._at is not None):
            raise Gone(FAILED, said(name, rc))
        self._refuse_all(code_of(rc), said(name, rc))
        self._at = None

    def _refuse_all(self, code: str, text: str) -> None:
        for _, field, _, _ in _METRICS:
            self.refused[field] = (code, text)


class _Rates:
    """Differences of one device's counters over the time between two readings."""

    def __init__(self, door: Door, handle: Any, instance: bool, reasons: Reasons, clock: Clock) -> None:
        self._reasons, self._clock = reasons, clock
        self._before: Dict[str, Tuple[float, int]] = {}
        self._wide: Set[str] = (
            set()
        )  # counters that have been seen to hold more than 32 bits, whatever their type says
        self._now = 0.0
        fields = [self._busy(74, "thr_power"), self._busy(75, "thr_thermal")]
        if not instance:  # these counters are the whole GPU's
            fields += [self._bytes(197, "pcie_tx_bps", 1), self._bytes(198, "pcie_rx_bps", 1)]
            fields += [self._bytes(138, "link_tx_bps", 1024, True), self._bytes(139, "link_rx_bps", 1024, True)]
        self._own = Reasons()
        self.fields = Fields(door, handle, fields, self._own)
        self._violations = self._by_violation_status(door, handle)

    def read(self, reading: Reading) -> None:
        self._now = self._clock()
        self.fields.ask(reading)
        for field, probe in self._violations.items():
            if field in self._own.known and not self.fields.works(field):
                reading.pop(field, None)
                probe.ask(reading)

    def why(self, field: str) -> Optional[Tuple[str, str]]:
        return self._own.known.get(field)

    def _step(self, field: str, value: int) -> Optional[Tuple[float, int]]:
        """Seconds and counts since the reading before; None at the first, and where the counter ran backwards."""
        before, self._before[field] = self._before.get(field), (self._now, value)
        if before is None or self._now <= before[0]:
            return None
        if value < before[1]:
            self._own.none(field, BAD_VALUE, "the counter went back, from %d to %d" % (before[1], value))
            return None
        return self._now - before[0], value - before[1]

    def _share(self, reading: Reading, field: str, nanoseconds: int) -> None:
        before = self._before.get(field)
        if before is not None and 0 <= self._now - before[0] < SHARE_S:
            return
        step = self._step(field, nanoseconds)
        if step is None:
            return
        reading[field] = throttled_share(step[1] / 1e9, step[0])
        if reading[field] is None:
            self._own.none(field, BAD_VALUE, "%.3g s of throttling in %.3g s" % (step[1] / 1e9, step[0]))

    def _busy(self, number: int, field: str) -> Field:
        def take(reading: Reading, value: Any, _: bool) -> None:
            self._share(reading, field, int(value))

        return Field(number, field, take)

    def _bytes(self, number: int, field: str, unit: int, every_link: bool = False) -> Field:
        def take(reading: Reading, value: Any, wide: bool) -> None:
            count = int(value)
            if wide and count >= _32_BITS:
                self._wide.add(field)
            if unit == 1 and field not in self._wide:
                self._own.none(field, BAD_VALUE, "a counter of 32 bits wraps within a second on a fast link")
                reading[field] = None
                return
            step = self._step(field, count)
            if step is not None:
                reading[field] = step[1] * unit / step[0]

        return Field(number, field, take, every_link)

    def _by_violation_status(self, door: Door, handle: Any) -> Dict[str, Probe]:
        """The same counters by the older call, for drivers whose field values do not hold them."""
        probes = {}
        for policy, field in ((0, "thr_power"), (1, "thr_thermal")):
            cell = door.nvml.c_nvmlViolationTime_t()

            def take(reading: Reading, field: str = field, cell: Any = cell) -> None:
                self._share(reading, field, cell.violationTime)

            args = (handle, ctypes.c_uint(policy), ctypes.byref(cell))
            probes[field] = Probe(door, ("nvmlDeviceGetViolationStatus",), args, (field,), take, Reasons())
        return probes


class Slow:
    """The SLOW fields of one device: by GPM where there is one, by counters where GPM does not say.

    `instance` is a MIG instance's id on the GPU `handle`; `first` says that it speaks for what its GPU has once.
    """

    def __init__(
        self,
        door: Door,
        handle: Any,
        reasons: Reasons,
        instance: Optional[int] = None,
        first: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self._reasons = reasons
        self._instance, self._first = instance, first
        self._gpm = Gpm(door, handle, instance, reasons, clock)
        self._rates = _Rates(door, handle, instance is not None and not first, reasons, clock)
        self._asking = threading.Lock()

    def read(self) -> Reading:
        """What can be told now; a rate is absent until there were two readings. Raises Gone."""
        with self._asking:
            return self._read()

    def _read(self) -> Reading:
        reading: Reading = {}
        counted: Reading = {}
        self._gpm.read(reading)
        self._rates.read(counted)
        for field in _ONLY_GPM:
            if field not in reading and field in self._gpm.refused:
                self._none(reading, field, self._gpm.refused[field])
        for field in _OF_PACKAGE:
            if field in reading:
                self._rates.fields.drop(field)
            elif self._instance is not None and not self._first:
                self._none(reading, field, (SHARED, "the first instance of this GPU speaks for it"))
            elif field in self._gpm.refused:
                self._counted(reading, counted, field)
        for field in ("thr_power", "thr_thermal"):
            self._counted(reading, counted, field)
        return reading

    def close(self) -> None:
        """Give back what the driver lent, unless another thread is still in the driver with it."""
        if self._asking.acquire(timeout=_CLOSE_S):
            try:
                self._gpm.close()
            finally:
                self._asking.release()

    def _counted(self, reading: Reading, counted: Reading, field: str) -> None:
        if field not in counted:
            return
        reading[field] = counted[field]
        if counted[field] is None:
            why = self._rates.why(field) or self._gpm.refused.get(field) or (FAILED, "the driver did not say")
            self._reasons.none(field, *why)

    def _none(self, reading: Reading, field: str, why: Tuple[str, str]) -> None:
        reading[field] = None
        self._reasons.none(field, *why)
