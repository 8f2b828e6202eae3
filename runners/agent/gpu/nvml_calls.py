"""Calls into libnvidia-ml, made ready once and then asked again and again: the result code decides, never a 0."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .source import BAD_VALUE, FAILED, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, SENTINEL, Gone, Reading, Reasons

UNINITIALIZED, NOT_SUPPORTED_RC, NO_PERMISSION_RC, NO_FUNCTION_RC = 1, 3, 4, 13
TIMEOUT_RC, LOST_RC, RESET_RC, MISMATCH_RC, UNKNOWN_RC = 10, 15, 16, 18, 999
GONE = (UNINITIALIZED, LOST_RC, RESET_RC, MISMATCH_RC)  # whatever is asked, until the library is opened anew
_CODES = {3: NOT_SUPPORTED, 4: NO_PERMISSION, 12: NOT_FOUND, 13: NOT_FOUND, 25: NOT_FOUND}
_WORDS = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "the driver is not loaded",
    10: "timed out",
    12: "the library is not found",
    13: "this driver has no such function",
    14: "the infoROM is corrupted",
    15: "the GPU is lost",
    16: "the GPU needs a reset",
    17: "the operating system refused",
    18: "driver and library are of two versions",
    21: "no data",
    25: "this driver has another version of the call",
    26: "no longer supported",
    27: "not ready",
    999: "unknown error",
}
_ALL_BITS = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_AS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by valueType
_EVERY_LINK = 0xFFFFFFFF

Take = Callable[[Reading], None]


def said(name: str, rc: int) -> str:
    """What a call returned, for people."""
    return "%s: %s (%d)" % (name, _WORDS.get(rc, "error"), rc)


def code_of(rc: int) -> str:
    """The reason code of source.py for a result of the library."""
    return _CODES.get(rc, FAILED)


def whole(reasons: Reasons, field: str, value: int, low: int, high: int, wide: bool = False) -> Optional[int]:
    """`value` where it can be true; else None, with its reason. `wide` values may well be 65535."""
    if value in (_ALL_BITS[1:] if wide else _ALL_BITS):
        reasons.none(field, SENTINEL, "the driver gave %d, which stands for no value" % value)
    elif low <= value <= high:
        return value
    else:
        reasons.none(field, BAD_VALUE, "the driver gave %d, which is not between %d and %d" % (value, low, high))
    return None


class Door:
    """The loaded library: functions by name, with nothing of the binding between."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._lib = nvml.nvmlLib

    def find(self, *names: str) -> Tuple[str, Any]:
        """The first of these functions that this driver has; (the last name, None) where it has none."""
        for name in names:
            try:
                return name, self._lib[name]
            except AttributeError:
                continue
        return names[-1], None


class Probe:
    """One call that fills some fields: `take` puts them into a reading after the call returned 0."""

    def __init__(
        self,
        door: Door,
        names: Sequence[str],
        args: Sequence[Any],
        fields: Sequence[str],
        take: Take,
        reasons: Reasons,
    ) -> None:
        self.name, self._fn = door.find(*names)
        self._args = tuple(args)
        self.fields = tuple(fields)
        self._take = take
        self._reasons = reasons
        self._worked = False
        if self._fn is None:
            self._none(NO_FUNCTION_RC)

    @property
    def works(self) -> bool:
        """Whether it has answered at least once."""
        return self._worked

    def ask(self, reading: Reading) -> None:
        """Fill this probe's fields, None where the driver refuses. Raises Gone."""
        if self._fn is None:
            for field in self.fields:
                reading[field] = None
            return
        rc = self._fn(*self._args)
        if rc == 0:
            self._worked = True
            self._take(reading)
            return
        for field in self.fields:
            reading[field] = None
        self._refused(rc)

    def _refused(self, rc: int) -> None:
        if rc in GONE or (rc == UNKNOWN_RC and self._worked):
            raise Gone(FAILED, said(self.name, rc))
        self._none(rc)
        if rc in (NO_PERMISSION_RC, UNKNOWN_RC):
            self._fn = None  # asking again would be refused again

    def _none(self, rc: int) -> None:
        for field in self.fields:
            self._reasons.none(field, code_of(rc), said(self.name, rc))


class Field(NamedTuple):
    """A value of nvmlDeviceGetFieldValues: `take` gets the raw number and whether its type has 64 bits."""

    number: int
    field: str
    take: Callable[[Reading, Any, bool], None]
    every_link: bool = False


class Fields:
    """Several field values by one call. What a driver does not know of one leaves the others alone."""

    def __init__(self, door: Door, handle: Any, fields: Sequence[Field], reasons: Reasons) -> None:
        self._nvml, self._handle, self._reasons = door.nvml, handle, reasons
        self._name, self._fn = door.find("nvmlDeviceGetFieldValues")
        self._worked: Dict[str, bool] = {}
        self._off: List[str] = []
        self._set(fields)
        if self._fn is None:
            for f in fields:
                reasons.none(f.field, NOT_FOUND, said(self._name, NO_FUNCTION_RC))

    def _set(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        array = (self._nvml.c_nvmlFieldValue_t * max(len(fields), 1))()
        for slot, f in zip(array, fields):  # noqa: B905 (strict came with 3.10)
            slot.fieldId = f.number
            slot.scopeId = _EVERY_LINK if f.every_link else 0
        self._array = array
        self._args = (self._handle, ctypes.c_int(len(fields)), ctypes.byref(array))
        self._pairs = [(f, array[i], array[i].value) for i, f in enumerate(fields)]

    def works(self, field: str) -> bool:
        """Whether `field` has been answered at least once."""
        return self._worked.get(field, False)

    def drop(self, field: str) -> None:
        """Ask for this field no more, and do not fill it."""
        self._set([f for f in self.fields if f.field != field])

    def ask(self, reading: Reading) -> None:
        """Fill the fields, None where the driver refuses. Raises Gone."""
        for field in self._off:
            reading[field] = None
        if not self.fields:
            return
        rc = NO_FUNCTION_RC if self._fn is None else self._fn(*self._args)
        refused = []
        for f, slot, value in self._pairs:
            result = rc or slot.nvmlReturn
            if result == 0:
                self._worked[f.field] = True
                kind = slot.valueType
                f.take(reading, getattr(value, _AS[kind]) if kind < len(_AS) else -1, kind in (2, 3, 4))
            else:
                reading[f.field] = None
                refused.append((f, result))
        for f, result in refused:
            self._refused(f, result)

    def _refused(self, f: Field, rc: int) -> None:
        name = "field %d of %s" % (f.number, self._name)
        if rc in GONE or (rc == UNKNOWN_RC and self.works(f.field)):
            raise Gone(FAILED, said(name, rc))
        self._reasons.none(f.field, code_of(rc), said(name, rc))
        if rc in (NO_PERMISSION_RC, UNKNOWN_RC):
            self._off.append(f.field)
            self.drop(f.field)
