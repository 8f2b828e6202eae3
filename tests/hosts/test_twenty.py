"""Twenty servers in one profile: one connection each, telemetry from all, each its own run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.duel import eventually, twenty_profile, user
from tests.hosts.machines import Machines, Many

pytestmark = pytest.mark.hosts


@pytest.fixture
def many(machines: Machines) -> Iterator[Many]:
    with machines.many(20) as made:
        yield made


def connections(many: Many) -> int:
    """Connections that stand to the twenty sshds."""
    done = many.namespace.run("ss", "-Htn", "state", "established", "sport", "=", ":22")
    return len(done.stdout.splitlines())


def test_all_run_at_once_over_one_connection_each(many: Many, machines: Machines, tmp_path: Path) -> None:
    gate = many.machine.home / "gate"
    with user(tmp_path, machines) as someone:
        someone.write_profile("twenty", twenty_profile(many))
        cockpit = someone.start("run", "--profile", "twenty")

        def ticking() -> int:
            logs = [m["id"] for m in someone.metas() if (someone.runs / m["id"] / "telemetry.jsonl").exists()]
            texts = [(someone.runs / run / "telemetry.jsonl").read_text() for run in logs]
            return sum(text.count('"tick"') >= 3 for text in texts)

        eventually(lambda: ticking() == 20, 60, someone.said)
        assert connections(many) == 20
        gate.touch()
        assert cockpit.wait(60) == 0, someone.said()
        metas = someone.metas()
        assert sorted(m["server"] for m in metas) == many.names
        assert {m["state"] for m in metas} == {"SUCCEEDED"}
        for meta in metas:
            address = many.addresses[many.names.index(meta["server"])]
            assert (someone.runs / meta["id"] / "stdout.log").read_text() == f"on {address}\ndone\n"
            hello = json.loads((someone.runs / meta["id"] / "telemetry.jsonl").read_text().splitlines()[0])
            assert hello["type"] == "hello"
