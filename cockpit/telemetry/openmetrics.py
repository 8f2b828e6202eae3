"""The sensors as OpenMetrics over HTTP, by the prometheus client library: for a scraper that people have already.

Names end in their unit and follow OpenTelemetry's hardware metrics in meaning: ratios are 0..1. A value that is not
known, or is older than a minute, is left out rather than shown as 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cockpit.core.errors import UsageError
from cockpit.core.gpu import DeviceNow, Known, MachineNow, number
from cockpit.core.text import printable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_OLD_S = 60.0
_PATIENCE_S = 10.0  # with a scraper that connects and says nothing: it holds a thread
_PORT = 9464  # OpenTelemetry's default for an exporter that is scraped
_GAUGES = {
    "util": ("gpu_utilization_ratio", "Share of time in which the GPU computed"),
    "mem_busy": ("gpu_memory_busy_ratio", "Share of time in which GPU memory was read or written"),
    "mem_used": ("gpu_memory_used_bytes", "GPU memory in use"),
    "mem_total": ("gpu_memory_size_bytes", "GPU memory"),
    "power_w": ("gpu_power_watts", "Power of the GPU or of its package, as the label scope says"),
    "power_limit_w": ("gpu_power_limit_watts", "Power that the GPU is held below"),
    "temp_edge_c": ("gpu_temperature_edge_celsius", "Temperature at the edge of the die"),
    "temp_hot_c": ("gpu_temperature_hotspot_celsius", "Temperature of the hottest spot"),
    "temp_mem_c": ("gpu_temperature_memory_celsius", "Temperature of GPU memory"),
    "clk_sm_mhz": ("gpu_clock_sm_megahertz", "Clock of the compute units, the median of several dies"),
    "clk_mem_mhz": ("gpu_clock_memory_megahertz", "Clock of GPU memory"),
    "sm_active": ("gpu_sm_active_ratio", "Share of compute units that had work"),
    "sm_occ": ("gpu_sm_occupancy_ratio", "Resident warps against the most that fit"),
    "tensor": ("gpu_tensor_active_ratio", "Share of time in which matrix units computed"),
    "dram_bw": ("gpu_memory_bandwidth_ratio", "Share of the memory bandwidth that was used"),
    "pcie_tx_bps": ("gpu_pcie_transmit_bytes_per_second", "PCIe traffic out of the GPU"),
    "pcie_rx_bps": ("gpu_pcie_receive_bytes_per_second", "PCIe traffic into the GPU"),
    "link_tx_bps": ("gpu_link_transmit_bytes_per_second", "NVLink or XGMI traffic out of the GPU"),
    "link_rx_bps": ("gpu_link_receive_bytes_per_second", "NVLink or XGMI traffic into the GPU"),
    "fan": ("gpu_fan_ratio", "Speed of the fan against its highest"),
}
_COUNTERS = {
    "energy_j": ("gpu_energy_joules", "Energy counter of the hardware"),
    "ecc_corr": ("gpu_ecc_corrected", "Corrected memory errors"),
    "ecc_uncorr": ("gpu_ecc_uncorrected", "Uncorrected memory errors"),
}
_LABELS = ("server", "gpu", "uuid", "model", "vendor", "partition", "scope")


class Watched(Protocol):
    """What is served of a machine; engine.watch.Machine is one."""

    name: str
    state: str
    now: MachineNow


class Server:
    """A server that answers until it is closed; a context manager. `port` is the one it took."""

    def __init__(self, httpd: Any, thread: Any) -> None:
        self._httpd = httpd
        self._thread = thread
        self.port = int(httpd.server_address[1])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join(5)


def address(where: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[ADDRESS]:PORT`, `:PORT` or `PORT`; the loopback where no host is said.

    Raises UsageError.
    """
    host, _, port = where.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UsageError(
            f"--serve {where}: {port!r} is no port.", hint=f"HOST:PORT or PORT, such as 127.0.0.1:{_PORT}."
        )
    return host, int(port)


def serve(machines: Sequence[Watched], host: str, port: int) -> Server:
    """Answer scrapes from a thread. Raises UsageError without the library, or where the address is taken."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise UsageError(
            "--serve needs the prometheus client library, which is not installed.",
            hint="pip install 'ekvi-cockpit[serve]'",
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(machines))
    try:
        httpd, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as e:
        raise UsageError(f"--serve {host}:{port}: {e.strerror or e}.", hint="Choose another address or port.") from e
    made: Any = httpd
    made.RequestHandlerClass = type("Handler", (made.RequestHandlerClass,), {"timeout": _PATIENCE_S})
    made.handle_error = lambda *_: None  # a scraper that hangs up is no trouble of ours, and stderr is the user's
    return Server(httpd, thread)


class Collector:
    """Makes the metrics of all machines at the moment of a scrape, in the scraper's thread."""

    def __init__(self, machines: Sequence[Watched]) -> None:
        self._machines = machines

    def collect(self) -> Iterator[Metric]:
        """Every family that has a sample, and whether each server is watched."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = time.monotonic()
        up = GaugeMetricFamily("ekvi_server_up", "Whether the sensors of the server are live", labels=["server"])
        missing = CounterMetricFamily("ekvi_samples_missing", "Samples that were not taken", labels=["server"])
        for machine in self._machines:
            up.add_metric([machine.name], float(machine.state == "live"))
            missing.add_metric([machine.name], float(machine.now.missing))
        yield up
        yield missing
        yield from self._clock()
        for field, (name, text) in _GAUGES.items():
            yield self._family(GaugeMetricFamily(f"ekvi_{name}", text, labels=_LABELS), field, now)
        for field, (name, text) in _COUNTERS.items():
            yield self._family(CounterMetricFamily(f"ekvi_{name}", text, labels=_LABELS), field, now)
        yield self._throttle(now)

    def _family(self, family: Any, field: str, now: float) -> Metric:
        for machine in self._machines:
            for device in list(machine.now.devices.values()):
                value = _fresh(machine.now, device.values.get(field), now)
                if value is not None and device.stale_s is None and machine.state == "live":
                    family.add_metric(_labels(machine, device), value)
        found: Metric = family
        return found

    def _throttle(self, now: float) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        text = "Why the GPU is slowed down: 1 for each reason that holds"
        family = GaugeMetricFamily("ekvi_gpu_throttle", text, labels=[*_LABELS, "reason"])
        for machine in self._machines:
            for device in list(machine.now.devices.values()):
                known = device.values.get("throttle")
                reasons = known.value if known is not None and machine.state == "live" else None
                if isinstance(reasons, list) and known is not None and machine.now.age_s(known, now) <= _OLD_S:
                    for reason in ("power", "thermal", "hw", "sync", "other"):
                        family.add_metric([*_labels(machine, device), reason], float(reason in reasons))
        return family

    def _clock(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        text = "How far the server's clock is ahead of this machine's"
        offset = GaugeMetricFamily("ekvi_server_clock_offset_seconds", text, labels=["server"])
        error = GaugeMetricFamily("ekvi_server_clock_error_seconds", "Bound of that", labels=["server"])
        for machine in self._machines:
            if machine.now.offset_s is not None and machine.now.error_s is not None:
                offset.add_metric([machine.name], machine.now.offset_s)
                error.add_metric([machine.name], machine.now.error_s)
        yield offset
        yield error


def _fresh(now: MachineNow, known: Known | None, at: float) -> float | None:
    return None if known is None or now.age_s(known, at) > _OLD_S else number(known.value)


def _labels(machine: Watched, device: DeviceNow) -> list[str]:
    about = device.identity
    vendor = (machine.now.hello or {}).get("vendor")
    said = (about.get("uuid"), about.get("model"), vendor, about.get("partition"), about.get("power_scope"))
    return [machine.name, str(device.index), *("" if value is None else printable(str(value)) for value in said)]
