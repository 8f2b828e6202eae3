"""What queue.json tells the agent of telemetry: by vendor, by profile, by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cockpit.core.records import NodePower, QueuePlan, Sampling, ServerSpec
from cockpit.launch import queue
from tests.launch.made import group, run, server

REDFISH = NodePower(
    kind="redfish", url="https://bmc-{node}/redfish/v1/Chassis/1", user="eye", secret="BMC", insecure=True
)


def _told(spec: ServerSpec, node: int = 0) -> dict[str, Any]:
    plan: QueuePlan = group(run(), spec, nodes=spec.node_accesses).queues[0]
    token = "0f" * 16 if len(spec.node_accesses) > 1 else None
    found: dict[str, Any] = queue(plan, {"s": spec}, code="c" * 64, node=node, token=token, master="10.0.0.1")
    return dict(found["telemetry"])


@pytest.mark.parametrize(("vendor", "hz", "idle_s"), [("nvidia", 10.0, 5.0), ("amd", 10.0, 5.0), ("cpu", 2.0, 0.0)])
def test_rate_and_idling_are_by_the_vendor(vendor: str, hz: float, idle_s: float) -> None:
    told = _told(server(vendor=vendor))
    assert told == {"hz": hz, "vendor": vendor, "idle_s": idle_s, "keep_by": 1 << 28, "node_power": None}


def test_what_the_profile_says_comes_first() -> None:
    told = _told(server(vendor="nvidia", telemetry=Sampling(hz=2.5, idle_s=0.0, keep_by=1 << 20)))
    assert (told["hz"], told["idle_s"], told["keep_by"]) == (2.5, 0.0, 1 << 20)


def test_each_node_asks_its_own_controller() -> None:
    spec = server(node_power=REDFISH)
    accesses = tuple(replace(spec.access, address=name) for name in ("ann@a", "b"))
    both = replace(spec, nodes=("ann@a", "b"), node_accesses=accesses)
    assert [_told(both, node)["node_power"]["url"] for node in (0, 1)] == [
        "https://bmc-a/redfish/v1/Chassis/1",
        "https://bmc-b/redfish/v1/Chassis/1",
    ]
    assert _told(both)["node_power"] | {"url": ""} == {
        "kind": "redfish", "url": "", "user": "eye", "secret": "BMC", "insecure": True,
    }  # fmt: skip


def test_ipmi_needs_no_more_than_its_name() -> None:
    assert _told(server(node_power=NodePower(kind="ipmi")))["node_power"] == {"kind": "ipmi"}
