"""Alarms: heat once and not flickering, memory errors that are new, throttling, what the driver reports."""

from __future__ import annotations

from typing import Any

from cockpit.core.gpu import MachineNow
from cockpit.engine.alarms import Alarm, Alarms


class Machine:
    def __init__(self, temp_c: float | None = None) -> None:
        self.now = MachineNow()
        self.alarms = Alarms(temp_c)
        self.at = 0

    def tick(self, **fields: Any) -> list[Alarm]:
        self.at += 1
        stamps = {"t_mono_ns": self.at * 10**9, "t_wall_ns": self.at * 10**9}
        return self.take({"type": "tick", "seq": self.at, **stamps, "devices": [{"index": 0, **fields}]})

    def take(self, line: dict[str, Any]) -> list[Alarm]:
        self.now.take(line, 0.0)
        return self.alarms.look(self.now, line)


def test_heat_is_told_once_and_again_only_after_it_cooled() -> None:
    machine = Machine(temp_c=90)
    told = [machine.tick(temp_edge_c=60, temp_mem_c=value) for value in (89, 90, 95, 88, 91, 86, 90)]
    assert [[(a.kind, a.over) for a in each] for each in told] == [
        [],
        [("heat", False)],
        [],
        [],
        [],
        [("heat", True)],
        [("heat", False)],
    ]
    assert told[1][0].text == "memory sensor at 90 °C, the limit is 90"
    assert told[1][0].t == 2.0


def test_without_a_limit_heat_is_nobody_s_alarm() -> None:
    assert Machine().tick(temp_hot_c=120) == []


def test_errors_that_were_there_before_are_no_alarm_and_new_ones_are() -> None:
    machine = Machine()
    assert machine.tick(ecc_uncorr=4) == []
    assert machine.tick() == []
    (alarm,) = machine.tick(ecc_uncorr=6)
    assert (alarm.kind, alarm.text) == ("ecc", "2 more uncorrected memory errors, 6 in all")
    assert machine.tick(ecc_uncorr=6) == []


def test_throttling_by_heat_is_an_alarm_and_by_the_power_cap_is_not() -> None:
    machine = Machine()
    assert machine.tick(throttle=["power"]) == []
    (begun,) = machine.tick(throttle=["power", "thermal"])
    assert (begun.kind, begun.over) == ("throttle", False)
    assert machine.tick(throttle=None) == []
    (ended,) = machine.tick(throttle=[])
    assert ended.over


def test_a_stale_sample_raises_nothing() -> None:
    machine = Machine(temp_c=50)
    assert machine.tick(stale_s=2.0, temp_hot_c=90) == []


def test_an_xid_is_told_with_the_driver_s_word() -> None:
    line = {
        "type": "err",
        "code": "event",
        "event": "xid",
        "value": 79,
        "index": 0,
        "text": "Xid 79: fell off the bus",
    }
    (alarm,) = Machine().take(line)
    assert (alarm.kind, alarm.index, alarm.text) == ("xid", 0, "Xid 79: fell off the bus")
