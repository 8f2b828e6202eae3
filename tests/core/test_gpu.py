"""What is known of a machine's sensors: last values with their age, and lines that nobody should believe."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.core.gpu import MOST_DEVICES, MachineNow, number

HELLO = {
    "type": "hello",
    "backend": "nvml",
    "devices": [{"index": 0, "model": "A", "unavailable": {"fan": ["not_supported", "no fan"]}}, {"index": 1}],
}


def tick(at_s: float, *devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "tick", "seq": 0, "t_mono_ns": int(at_s * 1e9), "t_wall_ns": 1, "devices": list(devices), **more}


def machine(*lines: dict[str, Any], now: float = 0.0) -> MachineNow:
    found = MachineNow()
    for line in lines:
        found.take(line, now)
    return found


def test_a_slow_field_stays_and_ages_by_the_server_s_clock_and_then_by_ours() -> None:
    first = tick(10, {"index": 0, "power_w": 500.0, "tensor": 0.5})
    then = tick(10.9, {"index": 0, "power_w": 510.0})
    found = machine(HELLO, first, then, now=100.0)
    device = found.devices[0]
    assert device.number("power_w") == 510.0
    assert device.number("tensor") == 0.5
    assert abs(found.age_s(device.values["tensor"], 100.25) - 1.15) < 1e-6
    assert abs(found.age_s(device.values["power_w"], 100.25) - 0.25) < 1e-6


def test_a_null_takes_the_value_away_and_the_reason_is_kept() -> None:
    found = machine(HELLO, tick(1, {"index": 0, "util": 0.9}), tick(2, {"index": 0, "util": None}))
    assert found.devices[0].get("util") is None
    assert "util" in found.devices[0].values
    assert found.devices[0].unavailable["fan"] == ("not_supported", "no fan")
    found.take({"type": "err", "index": 0, "field": "util", "code": "sentinel", "text": "65535"}, 0.0)
    assert found.devices[0].unavailable["util"] == ("sentinel", "65535")


def test_energy_has_the_time_of_its_own_reading() -> None:
    found = machine(tick(10, {"index": 0, "energy_j": 7.0, "energy_at": 9_500_000_000}))
    assert found.devices[0].values["energy_j"].at_ns == 9_500_000_000


def test_a_host_that_is_not_in_every_tick_is_not_forgotten() -> None:
    found = machine(tick(1, host={"cpu_util": 0.5}), tick(1.1))
    assert found.host["cpu_util"].value == 0.5


def test_a_stale_tick_says_so_until_the_next_good_one() -> None:
    found = machine(HELLO, tick(1, {"index": 0, "stale_s": 2.5, "power_w": None}))
    assert found.devices[0].stale_s == 2.5
    found.take(tick(2, {"index": 0, "power_w": 1.0}), 0.0)
    assert found.devices[0].stale_s is None


def test_missing_ticks_are_counted_and_named() -> None:
    found = machine(HELLO, {"type": "gap", "from_seq": 3, "to_seq": 7, "reason": "late"})
    assert (found.missing, found.gap) == (5, "late")
    found.take(tick(1), 0.0)
    assert found.gap is None


def test_another_source_forgets_the_gpus_of_the_one_before() -> None:
    found = machine(HELLO, tick(1, {"index": 1, "util": 0.1}), {**HELLO, "devices": [{"index": 0}]})
    assert list(found.devices) == [0]


def test_a_server_cannot_fill_the_memory() -> None:
    many = [{"index": i, **{f"f{j}": j for j in range(200)}} for i in range(2 * MOST_DEVICES)]
    found = machine(tick(1, *many))
    assert len(found.devices) == MOST_DEVICES
    assert max(len(d.values) for d in found.each()) <= 64


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["type", "devices", "host", "t_mono_ns", "t_wall_ns", "from_seq", "to_seq", "index", "unavailable", "offset_s"]
)


@given(
    st.lists(
        st.dictionaries(_KEYS, _JSON, max_size=8).flatmap(
            lambda line: st.sampled_from(["hello", "tick", "gap", "err", "clock", "?"]).map(
                lambda kind: {**line, "type": kind}
            )
        ),
        max_size=6,
    )
)
def test_no_line_whatever_it_holds_does_harm(lines: list[dict[str, Any]]) -> None:
    found = machine(*lines)
    for device in found.each():
        assert device.index >= 0
        for known in device.values.values():
            assert found.age_s(known, 0.0) >= 0


@pytest.mark.parametrize("value", [1e300, -1e18, 10**400, float("nan"), float("-inf"), True, "5", [5]])
def test_what_no_sensor_can_say_is_not_known(value: object) -> None:
    assert number(value) is None


@pytest.mark.parametrize("depth", [8, 500, 950])
@pytest.mark.parametrize("kind", ["hello", "tick", "err", "gap"])
def test_a_line_that_nests_deeper_than_any_of_ours_changes_nothing(kind: str, depth: int) -> None:
    deep: Any = 1
    for i in range(depth):
        deep = [deep] if i % 2 else {"a": deep}
    found = machine(HELLO)
    line = {**tick(1), "type": kind, "from_seq": 0, "to_seq": 1, "reason": deep, "text": deep, "host": {"x": deep}}
    line["devices"] = [{"index": 5, "model": deep}]
    assert found.take(line, 0.0) is None
    assert (list(found.devices), found.errors, found.missing, found.gap) == ([0, 1], deque(), 0, None)


def test_a_line_as_deep_as_the_schema_is_taken() -> None:
    links = [{"to": 1, "kind": "NVLink", "count": 18}]
    device = {"index": 0, "links": links, "unavailable": {"fan": ["not_supported", "none"]}}
    assert machine({**HELLO, "devices": [device]}).devices[0].identity["links"] == links
