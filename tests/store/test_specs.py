"""A server as it stands in a group's file is the server that was planned."""

from __future__ import annotations

import json
from dataclasses import asdict

from cockpit.core.records import NodePower, Sampling, ServerSpec
from cockpit.store.records import server_spec


def test_how_a_server_is_sampled_is_read_back() -> None:
    power = NodePower(kind="redfish", url="https://bmc", user="eye", secret="BMC", insecure=True)
    spec = ServerSpec(name="s", telemetry=Sampling(hz=3.0, temp_alarm_c=80.0), node_power=power)
    assert server_spec(json.loads(json.dumps(asdict(spec)))) == spec


def test_a_server_of_an_older_version_has_the_defaults() -> None:
    obj = {k: v for k, v in asdict(ServerSpec(name="s")).items() if k not in ("telemetry", "node_power")}
    assert server_spec(obj) == ServerSpec(name="s")
