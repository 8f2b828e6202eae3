"""Decoder of the amdgpu driver's gpu_metrics file: a C structure whose header names its size and revision.

The layouts are those of the kernel's kgd_pp_interface.h (format revision 1: discrete GPUs and Instinct), with natural
alignment, little-endian. A layout is known by revision and size together, since drivers outside of the kernel tree
gave one revision several sizes. What is not known is not decoded. All bits set means that the GPU does not have it.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

ENERGY_J = 2.0**-16  # of one count of the energy accumulator: 15.259 uJ in the kernel's header, 15.3 in AMD's tools

Values = Dict[str, Any]  # name -> int, list of int, or None where the GPU does not have it
_Field = Tuple[str, int, str, int]  # name, offset, struct code, count
_SENTINEL = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFFFFFF, "Q": 2**64 - 1}

_V1_1: Tuple[_Field, ...] = (
    ("temp_edge", 4, "H", 1),
    ("temp_hot", 6, "H", 1),
    ("temp_mem", 8, "H", 1),
    ("gfx", 16, "H", 1),
    ("umc", 18, "H", 1),
    ("power_average", 22, "H", 1),
    ("energy", 24, "Q", 1),
    ("gfxclk", 54, "H", 1),
    ("uclk", 58, "H", 1),
    ("fan_rpm", 72, "H", 1),
)
_V1_3 = (*_V1_1, ("indep_throttle", 112, "Q", 1))
_BEGIN: Tuple[_Field, ...] = (  # of 1.4 to 1.8
    ("temp_hot", 4, "H", 1),
    ("temp_mem", 6, "H", 1),
    ("power_current", 10, "H", 1),
    ("gfx", 12, "H", 1),
    ("umc", 14, "H", 1),
)


def _moved(fields: Tuple[_Field, ...], by: int) -> Tuple[_Field, ...]:
    return tuple((name, offset + by, code, count) for name, offset, code, count in fields)


def _middle(energy: int, xgmi: int, clocks: int) -> Tuple[_Field, ...]:
    return (
        ("energy", energy, "Q", 1),
        ("xgmi_read", xgmi, "Q", 8),
        ("xgmi_write", xgmi + 64, "Q", 8),
        ("gfxclk", clocks, "H", 8),
        ("uclk", clocks + 40, "H", 1),
    )


_RESIDENCY: Tuple[_Field, ...] = tuple(
    (name, 32 + 4 * i, "I", 1) for i, name in enumerate(("acc", "prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm"))
)
_V1_4 = (*_BEGIN, *_middle(24, 104, 240), ("throttle", 40, "I", 1))
_V1_5 = (*_BEGIN, *_middle(88, 176, 312), ("throttle", 104, "I", 1))
_V1_6 = (*_BEGIN, *_middle(16, 128, 264), *_RESIDENCY)
_V1_7 = (*_BEGIN, *_middle(24, 136, 296), *_moved(_RESIDENCY, 8))


class _Layout:
    """One unpack for all wanted fields; bytes between them are skipped."""

    def __init__(self, fields: Tuple[_Field, ...], xcp: Optional[Tuple[int, int]] = None) -> None:
        form, at, i = "<", 0, 0
        self.slots: List[Tuple[str, int, int, int]] = []  # name, first, count, sentinel
        for name, offset, code, count in sorted(fields, key=lambda field: field[1]):
            form += "%dx%d%s" % (offset - at, count, code)
            at = offset + count * struct.calcsize("<" + code)
            self.slots.append((name, i, count, _SENTINEL[code]))
            i += count
        self.struct = struct.Struct(form)
        self.xcp = xcp  # where the statistics of the first partition begin, and the bytes of one

    def values(self, blob: bytes) -> Values:
        raw = self.struct.unpack_from(blob)
        out: Values = {}
        for name, first, count, none in self.slots:
            if count == 1:
                value = raw[first]
                out[name] = None if value == none else value
            else:
                out[name] = [None if value == none else value for value in raw[first : first + count]]
        return out


_LAYOUTS = {
    (1, 1, 96): _Layout(_V1_1),
    (1, 2, 104): _Layout(_V1_1),
    (1, 3, 120): _Layout(_V1_3),
    (1, 4, 288): _Layout(_V1_4),
    (1, 5, 360): _Layout(_V1_5),
    # Without the partitions' statistics at the end, as some drivers have it, and with them.
    (1, 6, 312): _Layout(_V1_6),
    (1, 6, 1664): _Layout(_V1_6, (312, 168)),
    (1, 7, 344): _Layout(_V1_7),
    (1, 7, 2208): _Layout(_V1_7, (344, 232)),
    (1, 8, 344): _Layout(_V1_7),
    (1, 8, 3872): _Layout(_V1_7, (344, 440)),
}

# 1.9 is a list of attributes: a word of unit, type, id and count before each value. Kernel trees agree on the ids
# below 48. The number behind a name is the unit that it must have; 0, "none", is taken too.
_UNITLESS, _MHZ, _DEGC, _WATT, _PERCENT, _KB = 0, 1, 2, 3, 10, 9
_ATTRIBUTES = {
    0: ("temp_hot", _DEGC),
    1: ("temp_mem", _DEGC),
    3: ("power_current", _WATT),
    4: ("gfx", _PERCENT),
    5: ("umc", _PERCENT),
    7: ("energy", _UNITLESS),
    9: ("acc", _UNITLESS),
    10: ("prochot", _UNITLESS),
    11: ("ppt", _UNITLESS),
    12: ("socket_thm", _UNITLESS),
    13: ("vr_thm", _UNITLESS),
    14: ("hbm_thm", _UNITLESS),
    29: ("xgmi_read", _KB),
    30: ("xgmi_write", _KB),
    33: ("gfxclk", _MHZ),
    37: ("uclk", _MHZ),
    40: ("gfx_busy", _PERCENT),
}
_LISTS = frozenset(("xgmi_read", "xgmi_write", "gfxclk", "gfx_busy"))
_TYPES = "BbHhIiQq"
_MOST_ATTRIBUTES = 1024


class _Plan(NamedTuple):
    """How one table of attributes was laid out: good for the next blob while its words are the same."""

    struct: struct.Struct
    words: Tuple[Tuple[int, int], ...]  # place among the unpacked, the word that must stand there
    slots: Tuple[Tuple[str, int, int, Tuple[int, ...]], ...]  # name, first, count, sentinels


_plans: Dict[Tuple[int, int], _Plan] = {}


def decode(blob: bytes) -> Tuple[Optional[Values], str]:
    """The values of a gpu_metrics file and the layout's name ("v1.6"), or None and why not. Never raises.

    Names as in the kernel, shortened: temp_edge, temp_hot, temp_mem (degrees Celsius), gfx, umc (percent),
    power_average or power_current (W), energy (counts of ENERGY_J), gfxclk (a list), uclk (MHz), xgmi_read and
    xgmi_write (lists, KB since the driver was loaded), acc and the residencies that count with it, throttle (bits of
    MI300), indep_throttle (bits alike on all GPUs), fan_rpm, gfx_busy (percent, of 1.9). A name that a layout does
    not have is absent.
    """
    if len(blob) < 4:
        return None, "gpu_metrics is cut off: %d bytes" % len(blob)
    size, form, content = struct.unpack_from("<HBB", blob)
    name = "v%d.%d" % (form, content)
    if len(blob) < size:
        return None, "gpu_metrics %s is cut off: %d of %d bytes" % (name, len(blob), size)
    if (form, content) == (1, 9):
        values = _attributes(blob[:size])
        return (values, name) if values is not None else (None, "gpu_metrics v1.9 has attributes that do not fit it")
    layout = _LAYOUTS.get((form, content, size))
    if layout is None:
        return None, "gpu_metrics %s of %d bytes has a layout that is not known" % (name, size)
    values = layout.values(blob)
    if not isinstance(values["gfxclk"], list):
        values["gfxclk"] = [values["gfxclk"]]
    return values, name


def partitions_busy(blob: bytes) -> Optional[List[List[int]]]:
    """Busy percent of the compute dies of each partition, where it has some; None where the layout has none."""
    if len(blob) < 4:
        return None
    size, form, content = struct.unpack_from("<HBB", blob)
    layout = _LAYOUTS.get((form, content, size))
    if layout is None or layout.xcp is None or len(blob) < size:
        return None
    first, stride = layout.xcp
    raw = [struct.unpack_from("<8I", blob, first + stride * i) for i in range(8)]
    return [[busy for busy in xcp if busy <= 100] for xcp in raw]


def _attributes(blob: bytes) -> Optional[Values]:
    if len(blob) < 8:
        return None
    (count,) = struct.unpack_from("<i", blob, 4)
    if not 0 <= count <= _MOST_ATTRIBUTES:
        return None
    key = (len(blob), count)
    plan = _plans.get(key)
    raw = plan.struct.unpack(blob) if plan is not None else ()
    if plan is None or any(raw[i] != word for i, word in plan.words):
        plan = _planned(blob, count)
        if plan is None:
            return None
        if len(_plans) > 64:  # noise must not fill the memory
            _plans.clear()
        _plans[key] = plan
        raw = plan.struct.unpack(blob)
    out: Values = {}
    for name, first, n, none in plan.slots:
        values = [None if value in none else value for value in raw[first : first + n]]
        out[name] = values if name in _LISTS else values[0]
    return out


def _planned(blob: bytes, count: int) -> Optional[_Plan]:
    """Walk the attributes once; None where they pass the end or one has a type that is not known."""
    form, at, i = "<8x", 8, 0
    words: List[Tuple[int, int]] = []
    slots: List[Tuple[str, int, int, Tuple[int, ...]]] = []
    for _ in range(count):
        if at + 8 > len(blob):
            return None
        (word,) = struct.unpack_from("<Q", blob, at)
        unit, kind, ident, n = word >> 24 & 0xFF, word >> 20 & 0xF, word >> 10 & 0x3FF, word & 0x3FF
        if kind >= len(_TYPES):
            return None
        code = _TYPES[kind]
        wide = struct.calcsize("<" + code) * n
        if at + 8 + wide > len(blob):
            return None
        name, wants = _ATTRIBUTES.get(ident, ("", 0))
        if name and n and unit in (0, wants):
            form += "Q%d%s" % (n, code)
            slots.append((name, i + 1, n, _sentinels(code)))
            words.append((i, word))
            i += 1 + n
        else:
            form += "Q%dx" % wide
            words.append((i, word))
            i += 1
        at += 8 + wide
    return _Plan(struct.Struct(form + "%dx" % (len(blob) - at)), tuple(words), tuple(slots))


def _sentinels(code: str) -> Tuple[int, ...]:
    if code in _SENTINEL:
        return (_SENTINEL[code],)
    return (-1, _SENTINEL[code.upper()] >> 1)
