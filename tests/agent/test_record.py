"""The status record: what is read was written, whole, or is nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runners.agent import record
from runners.agent.base import is_locked

_values = st.none() | st.booleans() | st.integers(0, 10**15) | st.floats(allow_nan=False, allow_infinity=False)
_fields = st.fixed_dictionaries(
    {"stage": st.text(max_size=200), "pid": _values, "t_start": _values, "ended": _values}
)


@given(_fields)
def test_reads_what_was_written_and_never_changes_its_size(fields: dict[str, Any]) -> None:
    data = record.encode(fields)
    assert len(data) == record.SIZE
    assert data.endswith(b"\n")
    assert record.decode(data) == fields


@given(_fields, _fields, st.integers(0, record.SIZE))
def test_a_record_caught_in_the_middle_of_a_rewrite_is_noticed(
    old: dict[str, Any], new: dict[str, Any], cut: int
) -> None:
    torn = record.encode(new)[:cut] + record.encode(old)[cut:]
    assert record.decode(torn) in (None, old, new)


@given(_fields, st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_byte_is_noticed(fields: dict[str, Any], at: int, byte: int) -> None:
    data = bytearray(record.encode(fields))
    data[at] = byte
    assert record.decode(bytes(data)) in (None, fields)


def test_a_short_or_missing_record_is_none(tmp_path: Path) -> None:
    path = tmp_path / "shim.0.json"
    assert record.read(str(path)) is None
    path.write_bytes(record.encode(record.fresh("train"))[:100])
    assert record.read(str(path)) is None


def test_a_new_record_is_whole_and_locked_from_its_first_moment(tmp_path: Path) -> None:
    path = str(tmp_path / "shim.0.json")
    fd = record.create(path, record.fresh("train"))
    assert is_locked(path)
    assert record.read(path) == record.fresh("train")
    os.close(fd)
    assert not is_locked(path)
