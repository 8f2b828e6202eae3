"""queue.json is read strictly; placeholders and environments follow the contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.agent import queuefile
from runners.agent.base import AgentError
from runners.agent.queuefile import Queue

PLACES = ("RUN_DIR", "OUT_DIR", "CODE_DIR", "CACHE_DIR", "FILES_DIR", "SECRETS_DIR", "WORK_DIR")


def _body(**more: Any) -> dict[str, Any]:
    run = {"run": "r1", "server": "left", "env": {}, "stages": [{"stage": "train", "argv": ["true"]}]}
    return {"schema": "ekvi.queue/1", "group": "g", "key": "k", "slot": "s", "runs": [run], **more}


def _write(tmp_path: Path, text: str) -> Path:
    q = tmp_path / "work" / "groups" / "g.k"
    q.mkdir(parents=True)
    (q / "queue.json").write_text(text)
    return q


def _load(tmp_path: Path, **more: Any) -> Queue:
    return queuefile.load(str(_write(tmp_path, json.dumps(_body(**more)))))


def _run(**more: Any) -> list[dict[str, Any]]:
    return [{"run": "r1", "stages": [{"stage": "train", "argv": ["true"], **more}]}]


PEERS = {"rank": 1, "names": ["a", "b"], "address": "10.0.0.1", "port": 29401, "token": "0f" * 16}
CREATE = {"argv": ["docker", "--tlsverify", "create", "image"], "container": {"engine": "docker", "name": "ekvi-1"}}


def _but(**more: Any) -> dict[str, Any]:
    return {"peers": PEERS | more}


REDFISH = {"kind": "redfish", "url": "https://bmc/redfish/v1/Chassis/1", "user": "eye", "secret": "BMC"}


def _sampled(**more: Any) -> dict[str, Any]:
    return {"telemetry": more}


def _links(path: str, target: Any = "${FILES_DIR}/x") -> dict[str, Any]:
    return {"runs": [_run()[0] | {"links": {path: target}}]}


def test_defaults(tmp_path: Path) -> None:
    queue = _load(tmp_path)
    stage = queue.runs[0].stages[0]
    assert (queue.slots, queue.cooldown_s, queue.code) == (1, 0.0, None)
    assert queue.telemetry == queuefile.Telemetry(2.0, "cpu", 0.0, 256 << 20, None)
    assert (stage.timeout_s, stage.stall_after_s, stage.stop_grace_s, stage.cwd) == (None, None, 10.0, None)
    assert (queue.files, queue.peers, stage.container) == ((), None, None)
    assert (queue.runs[0].gpus, queue.runs[0].links, queue.runs[0].contained) == (None, {}, False)
    assert queue.work == str((tmp_path / "work").resolve())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"schema": "ekvi.queue/2"}, "ekvi.queue/2"),
        ({"group": "../up"}, "group is '../up'"),
        ({"slot": "a/b"}, "slot is 'a/b'"),
        ({"slots": 0}, "slots must be a number from 1 on"),
        ({"cooldown_s": "long"}, 'cooldown_s must be a number from 0 on, it is "long"'),
        ({"cooldown_s": True}, "cooldown_s must be a number"),
        ({"code": "xyz"}, "code is 'xyz'"),
        ({"runs": {}}, "runs must be a list"),
        ({"runs": [{"run": "r1", "stages": []}]}, "runs[0].stages must not be empty"),
        ({"runs": _run() * 2}, "runs name a run twice"),
        ({"runs": [{"run": "r", "stages": _run()[0]["stages"] * 2}]}, "runs[0].stages name a stage twice"),
        ({"runs": _run(argv=[])}, "runs[0].stages[0].argv must be a list of texts"),
        ({"runs": _run(argv=["a\0b"])}, "runs[0].stages[0].argv"),
        ({"runs": _run(env={"A": 1})}, "runs[0].stages[0].env.A must be text"),
        ({"runs": _run(timeout_s=-1)}, "runs[0].stages[0].timeout_s must be a number from 0 on"),
        ({"runs": _run(container={"engine": "docker", "name": "x"})}, "container.engine 'docker' has no `create`"),
        ({"runs": _run(**{**CREATE, "container": {"engine": "docker", "name": "a b"}})}, "container.name is 'a b'"),
        ({"runs": _run(**{**CREATE, "container": {"name": "x"}})}, "container.engine is missing"),
        ({"runs": [_run()[0] | {"gpus": [0, 0]}]}, "runs[0].gpus must be null or numbers from 0 on, each once"),
        ({"runs": [_run()[0] | {"gpus": [True]}]}, "runs[0].gpus must be null"),
        (_links("../x"), "runs[0].links name '../x', which is no plain path"),
        (_links("/etc/x"), "runs[0].links name '/etc/x', which is no plain path"),
        (_links("out/x"), "runs[0].links name 'out/x', which is the agent's own"),
        (_links("shim.0.json"), "runs[0].links name 'shim.0.json', which is the agent's own"),
        (_links("x", 1), "runs[0].links 'x' must point to a path"),
        ({"files": ["../../etc"]}, 'files hold "../../etc"; each must be 16 hexadecimal digits'),
        (_but(rank=2), "peers.rank must be a whole number in 0..1"),
        (_but(port=0), "peers.port must be a whole number in 1..65535"),
        (_but(names=["a"]), "peers.names must be the names of two nodes or more"),
        (_but(names=["a", "a"]), "peers.names hold a node twice"),
        (_but(token="short"), "peers.token must be 16 hexadecimal digits or more"),
        (_but(silence_s=0), "peers.silence_s must be a number from 0.1 on"),
        (_but(address=""), "peers.address must not be empty"),
        (_sampled(hz=0), "telemetry.hz must be a number from 0.01 on"),
        (_sampled(vendor="intel"), "telemetry.vendor is 'intel'; it must be one of nvidia, amd, cpu"),
        (_sampled(idle_s=-1), "telemetry.idle_s must be a number from 0 on"),
        (_sampled(keep_by=1), "telemetry.keep_by must be a number from 65536 on"),
        (_sampled(node_power={"kind": "snmp"}), "telemetry.node_power.kind is 'snmp'"),
        (_sampled(node_power=REDFISH | {"url": "http://bmc"}), "telemetry.node_power.url is 'http://bmc'"),
        (_sampled(node_power=REDFISH | {"secret": "../x"}), "telemetry.node_power.secret is '../x'"),
        (_sampled(node_power=REDFISH | {"insecure": 1}), "telemetry.node_power.insecure must be true or false"),
        (_links("telemetry.0.jsonl"), "which is the agent's own"),
        ({"runs": _run(argv=["${CODE_DIR}/x"])}, "runs use ${CODE_DIR}, but `code` is null"),
    ],
)
def test_says_what_is_wrong_where(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError) as caught:
        _load(tmp_path, **more)
    assert words in str(caught.value)
    assert "queue.json" in str(caught.value)


def test_nodes_containers_files_and_gpus_are_read(tmp_path: Path) -> None:
    runs = [
        {"run": "r1", "gpus": [2, 0], "links": {"a/b.yaml": "${FILES_DIR}/x"}, "stages": _run(**CREATE)[0]["stages"]}
    ]
    queue = _load(tmp_path, runs=runs, files=["0123456789abcdef"], peers=PEERS)
    run = queue.runs[0]
    assert (run.gpus, run.links, run.contained) == ((2, 0), {"a/b.yaml": "${FILES_DIR}/x"}, True)
    assert run.stages[0].container == queuefile.Container("docker", "ekvi-1")
    assert run.stages[0].engine == ("docker", "--tlsverify")
    assert queue.files == ("0123456789abcdef",)
    assert queue.peers == queuefile.Peers(1, ("a", "b"), "10.0.0.1", 29401, "0f" * 16, 30.0)


def test_how_the_machine_is_sampled_is_read(tmp_path: Path) -> None:
    told = {"hz": 10, "vendor": "amd", "idle_s": 5, "keep_by": 1 << 20, "node_power": REDFISH}
    power = queuefile.NodePower("redfish", "https://bmc/redfish/v1/Chassis/1", "eye", "BMC", False)
    assert _load(tmp_path, telemetry=told).telemetry == queuefile.Telemetry(10, "amd", 5, 1 << 20, power)


def test_ipmi_needs_no_more_than_its_name(tmp_path: Path) -> None:
    assert _load(tmp_path, **_sampled(node_power={"kind": "ipmi"})).telemetry.node_power == queuefile.NodePower(
        "ipmi"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"schema": null}'])
def test_what_is_no_queue_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(AgentError, match=r"queue\.json"):
        queuefile.load(str(_write(tmp_path, text)))


def test_a_folder_elsewhere_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"has no queue\.json"):
        queuefile.load(str(tmp_path))
    (tmp_path / "queue.json").write_text(json.dumps(_body()))
    with pytest.raises(AgentError, match="does not lie in the folder `groups`"):
        queuefile.load(str(tmp_path))


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return _load(tmp_path_factory.mktemp("queue"), code="0123456789abcdef")


@given(st.lists(st.sampled_from([f"${{{p}}}" for p in PLACES]) | st.text(alphabet="a/${}_RUNDIHOME ", max_size=8)))
def test_only_our_placeholders_are_replaced(queue: Queue, parts: list[str]) -> None:
    text = "".join(parts)
    run_dir = f"{queue.path}/runs/r1"
    expected = text
    for name, value in (
        ("RUN_DIR", run_dir),
        ("OUT_DIR", run_dir + "/out"),
        ("CODE_DIR", queue.work + "/code/0123456789abcdef"),
        ("CACHE_DIR", queue.work + "/cache"),
        ("FILES_DIR", queue.work + "/files"),
        ("SECRETS_DIR", queue.path + "/secrets"),
        ("WORK_DIR", queue.work),
    ):
        expected = expected.replace(f"${{{name}}}", value)
    assert queue.expand(text, "r1") == expected


def test_the_stage_has_the_last_word_but_for_our_own_variables(queue: Queue) -> None:
    stage = queue.runs[0].stages[0]._replace(env={"B": "stage ${OUT_DIR}", "EKVI_RUN": "other"})
    run = queue.runs[0]._replace(env={"A": "run", "B": "run"})
    env = queue.environment(run, stage, {"A": "own", "HOME": "/h"})
    out = f"{queue.path}/runs/r1/out"
    assert env == {
        "A": "run",
        "B": f"stage {out}",
        "HOME": "/h",
        "EKVI_OUT": out,
        "EKVI_CACHE": queue.work + "/cache",
        "EKVI_RUN": "r1",
        "EKVI_STAGE": "train",
        "PYTHONUNBUFFERED": "1",
    }
