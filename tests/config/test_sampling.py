"""The profile's words on telemetry, and a server's sensor of its whole power."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cockpit.config import load
from cockpit.core.records import NodePower, Sampling
from tests.config.helpers import refusal, write

REDFISH = {"kind": "redfish", "url": "https://bmc-{node}", "user": "eye", "secret": "BMC_PASSWORD"}
SERVER: dict[str, Any] = {"vendor": "cpu", "secrets": ["BMC_PASSWORD"], "node_power": REDFISH}


def _profile(server: dict[str, Any], **more: Any) -> None:
    base = {
        "defaults": [{"model": "tiny"}, {"data": "pydoc"}, {"training": "cpu"}, {"runner": "smoke"}, "_self_"],
        "servers": {"s": server},
        **more,
    }
    write("odd.yaml", yaml.safe_dump(base))


def test_what_the_profile_says_reaches_each_server() -> None:
    _profile(SERVER, telemetry={"hz": 4, "idle_s": 1.5, "temp_alarm_c": 85})
    config = load("odd").points[0].configs["s"]
    spec = config.servers["s"].spec("s", config)
    assert spec.telemetry == Sampling(hz=4.0, idle_s=1.5, temp_alarm_c=85.0)
    assert spec.node_power == NodePower(
        kind="redfish", url="https://bmc-{node}", user="eye", secret="BMC_PASSWORD", insecure=False
    )


def test_nothing_said_leaves_it_to_the_vendor_and_asks_no_controller() -> None:
    _profile({"vendor": "cpu"})
    config = load("odd").points[0].configs["s"]
    spec = config.servers["s"].spec("s", config)
    assert (spec.telemetry, spec.node_power) == (Sampling(), None)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ({"secrets": []}, "node_power.secret 'BMC_PASSWORD' is not among the server's secrets"),
        ({"node_power": REDFISH | {"url": "http://bmc"}}, "node_power"),
        ({"node_power": REDFISH | {"url": "https://eye:word@bmc"}}, "node_power"),
        ({"node_power": {"kind": "snmp"}}, "node_power"),
        ({"nodes": ["a", "b"], "node_power": REDFISH | {"url": "https://bmc"}}, "write {node} in it"),
    ],
)
def test_a_controller_that_cannot_be_asked_is_refused(server: dict[str, Any], says: str) -> None:
    _profile(SERVER | server)
    assert says in str(refusal("odd"))


@pytest.mark.parametrize("section", [{"hz": 0}, {"hz": 1000}, {"idle_s": -1}, {"keep_by": 5}, {"rate": 3}])
def test_a_senseless_rate_is_refused_with_its_key(section: dict[str, Any]) -> None:
    _profile(SERVER, telemetry=section)
    assert next(iter(section)) in str(refusal("odd"))
