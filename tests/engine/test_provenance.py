"""What a run's record says of the container that makes it, before it starts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from cockpit import launch
from cockpit.config import load
from cockpit.core.records import ContainerFacts
from cockpit.engine.admit import Checked
from cockpit.engine.deliver import Packing
from cockpit.engine.putting import _Launch, _Packages, _Queue
from cockpit.metrics.parity import parity
from cockpit.metrics.sides import RunFacts, Side
from cockpit.plan import make_plan
from cockpit.store.store import Store
from cockpit.telemetry.pack import Package

CODE = "c" * 64
FOUND = {
    "nvidia": ContainerFacts(engine="docker", version="29.1", image_id="sha256:" + "a" * 64, digest="sha256:dd"),
    "amd": ContainerFacts(engine="podman", version="5.4", image_id="sha256:" + "b" * 64, cdi=True),
}


def test_each_run_names_the_image_that_its_server_has_and_the_words_that_start_it(tmp_path: Path) -> None:
    group = make_plan(load("duel-llama31-8b"), group="g", repeats=1)
    group = replace(group, servers={name: replace(s, container=FOUND[name]) for name, s in group.servers.items()})
    checked, store = Checked(group), Store(tmp_path)
    packages = _Packages(Package(b"", "a" * 64), Package(b"", CODE))
    queues = [
        _Queue(
            queue,
            [],
            facts={"host": {"host_id": queue.key}},
            handle={"key": queue.key, "path": "/w", "python": "python3", "workdir": "/w"},
            documents=[launch.queue(queue, checked.servers(0), code=CODE)],
        )
        for queue in group.queues
    ]
    with closing(Packing()) as packing:
        _Launch(checked, store, packages, packing, queues)._write(queues, None)
    metas = {m["server"]: m for m in (store.run_dir(r.run).meta() for r in group.runs)}
    for name, meta in metas.items():
        told, facts = meta["provenance"]["container"], FOUND[name]
        assert (told["engine"], told["version"]) == (facts.engine, facts.version)
        assert (told["image_id"], told["digest"]) == (facts.image_id, facts.digest)
        for stage in meta["provenance"]["stages"]:
            assert stage["argv"][0] == facts.engine
            assert told["image"] in stage["argv"]
    sides = [Side(n, [RunFacts(n, {"state": "SUCCEEDED"}, {**m, "state": "SUCCEEDED"})]) for n, m in metas.items()]
    told_apart = {d["key"]: d["severity"] for d in parity(sides)["differences"]}
    assert told_apart["image"] == "info"
    assert set(told_apart.values()) == {"info"}, "the same code on both vendors is a fair duel"
