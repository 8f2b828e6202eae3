"""Blobs of the amdgpu driver's gpu_metrics, from values: C structures as the kernel declares them, every byte that no
value was given for all ones, as the driver leaves what a GPU does not have."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
Fields = list[tuple[str, Any]]


def _fields(kind: Any, names: str) -> Fields:
    out: Fields = []
    for word in names.split():
        name, _, count = word.partition("*")
        out.append((name, kind * int(count) if count else kind))
    return out


_HEADER: Fields = [("structure_size", U16), ("format_revision", U8), ("content_revision", U8)]
_V1_1 = (
    _HEADER
    + _fields(U16, "temperature_edge temperature_hotspot temperature_mem vrgfx vrsoc vrmem")
    + _fields(U16, "average_gfx_activity average_umc_activity average_mm_activity average_socket_power")
    + _fields(U64, "energy_accumulator system_clock_counter")
    + _fields(U16, "avg_gfxclk avg_socclk avg_uclk avg_vclk0 avg_dclk0 avg_vclk1 avg_dclk1")
    + _fields(U16, "current_gfxclk current_socclk current_uclk vclk0 dclk0 vclk1 dclk1")
    + _fields(U32, "throttle_status")
    + _fields(U16, "current_fan_speed pcie_link_width pcie_link_speed padding")
    + _fields(U32, "gfx_activity_acc mem_activity_acc")
    + _fields(U16, "temperature_hbm*4")
)
_V1_2 = _V1_1 + _fields(U64, "firmware_timestamp")
_V1_3 = _V1_2 + _fields(U16, "voltage_soc voltage_gfx voltage_mem padding1") + _fields(U64, "indep_throttle_status")
_BEGIN = (
    _HEADER
    + _fields(U16, "temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power")
    + _fields(U16, "average_gfx_activity average_umc_activity")
)
_COUNTERS = _fields(U64, "energy_accumulator system_clock_counter")
_LINKS = _fields(U16, "pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed")
_ACTIVITY = _fields(U32, "gfx_activity_acc mem_activity_acc")
_PCIE = _fields(U64, "pcie_bandwidth_acc pcie_bandwidth_inst l0_to_recov replay replay_rover")
_NAK = _fields(U32, "nak_sent nak_rcvd")
_XGMI = _fields(U64, "xgmi_read_data_acc*8 xgmi_write_data_acc*8")
_CLOCKS = _fields(U64, "firmware_timestamp") + _fields(
    U16, "current_gfxclk*8 current_socclk*4 vclk0*4 dclk0*4 current_uclk num_partition"
)
_BITS = _fields(U32, "throttle_status gfxclk_lock_status")
_V1_4 = _BEGIN + _fields(U16, "vcn*4") + _COUNTERS + _BITS + _LINKS + _ACTIVITY + _PCIE + _XGMI + _CLOCKS
_V1_5 = (
    _BEGIN + _fields(U16, "vcn*4 jpeg*32") + _COUNTERS + _BITS + _LINKS + _ACTIVITY + _PCIE + _NAK + _XGMI + _CLOCKS
)
_RESIDENCY = _fields(
    U32,
    "accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc "
    "hbm_thm_residency_acc gfxclk_lock_status",
)
_AFTER = _RESIDENCY + _LINKS + _ACTIVITY + _PCIE + _NAK + _XGMI
_V1_6 = _BEGIN + _COUNTERS + _AFTER + _CLOCKS
_V1_7 = (
    _BEGIN
    + _fields(U64, "mem_max_bandwidth")
    + _COUNTERS
    + _AFTER
    + _fields(U16, "xgmi_link_status*8 padding")
    + _CLOCKS
)


def _structure(name: str, fields: Fields) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _with_partitions(fields: Fields, jpeg: int, more: str) -> Fields:
    one = _fields(U32, "gfx_busy_inst*8") + _fields(U16, f"jpeg_busy*{jpeg} vcn_busy*4") + _fields(U64, more)
    return [*fields, ("xcp_stats", _structure("Xcp", one) * 8), ("pcie_lc_perf_other_end_recovery", U32)]


_LAYOUTS = {
    "v1.1": (1, _V1_1),
    "v1.2": (2, _V1_2),
    "v1.3": (3, _V1_3),
    "v1.4": (4, _V1_4),
    "v1.5": (5, _V1_5),
    "v1.6-312": (6, _V1_6),
    "v1.6": (6, _with_partitions(_V1_6, 32, "gfx_busy_acc*8")),
    "v1.7": (7, _with_partitions(_V1_7, 32, "gfx_busy_acc*8 below*8")),
    "v1.8": (8, _with_partitions(_V1_7, 40, "gfx_busy_acc*8 below_ppt*8 below_thm*8 low*8 below_total*8")),
}
STRUCTURES = {name: (content, _structure(name, fields)) for name, (content, fields) in _LAYOUTS.items()}
VERSIONS = (*STRUCTURES, "v1.9")

_NAMES = (  # in the order of the kernel's numbers
    "temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity "
    "average_umc_activity mem_max_bandwidth energy_accumulator system_clock_counter accumulation_counter "
    "prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc hbm_thm_residency_acc "
    "gfxclk_lock_status pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed gfx_activity_acc "
    "mem_activity_acc pcie_bandwidth_acc pcie_bandwidth_inst l0 replay rover nak_sent nak_rcvd xgmi_read_data_acc "
    "xgmi_write_data_acc xgmi_link_status firmware_timestamp current_gfxclk current_socclk vclk0 dclk0 current_uclk "
    "num_partition recovery gfx_busy_inst"
)
_IDS = _NAMES.split()
_TYPES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "Q": 6, "q": 7}
_UNITS = {"temperature": 2, "curr": 3, "average": 10, "current": 1, "xgmi": 9, "gfx": 10}


def blob(version: str, values: Mapping[str, Any]) -> bytes:
    """The file of one revision ("v1.3" ... "v1.9"); lists may be shorter than their field, `xcp_busy` is a list for
    each partition. A value whose field the revision does not have is left out."""
    if version == "v1.9":
        told = [(name, value) for name, value in values.items() if name in _IDS]
        return attributes([(name, "Q" if "acc" in name else "H", _list(value)) for name, value in told])
    content, kind = STRUCTURES[version]
    size = ctypes.sizeof(kind)
    out = kind.from_buffer(bytearray(b"\xff" * size))
    known = {name for name, _ in kind._fields_}
    for name, value in {**values, "structure_size": size, "format_revision": 1, "content_revision": content}.items():
        if name == "xcp_busy" and "xcp_stats" in known:
            for xcp, busy in zip(out.xcp_stats, value, strict=False):
                xcp.gfx_busy_inst[: len(busy)] = busy
        elif name in known and isinstance(getattr(out, name), ctypes.Array):
            getattr(out, name)[: len(_list(value))] = _list(value)
        elif name in known:
            setattr(out, name, _list(value)[0])
    return bytes(out)


def attributes(of: Sequence[tuple[str | int, str, Sequence[int]]], unit: int | None = None) -> bytes:
    """A v1.9 table: name or id, struct code and values of each attribute."""
    body = b""
    for name, code, values in of:
        ident = name if isinstance(name, int) else _IDS.index(name)
        own = _UNITS.get(str(name).split("_", maxsplit=1)[0], 0) if unit is None else unit
        own = 0 if str(name).endswith("counter") else own
        body += struct.pack("<Q", own << 24 | _TYPES[code] << 20 | ident << 10 | len(values))
        body += struct.pack(f"<{len(values)}{code}", *values)
    return struct.pack("<HBBi", 8 + len(body), 1, 9, len(of)) + body


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, range)) else [value]
