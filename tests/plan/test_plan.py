"""Plans: turns, queues, stages; and the exact plan of duel-local."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.config import load
from cockpit.core.errors import ConfigError
from cockpit.core.records import GroupPlan
from cockpit.plan import make_plan
from tests.config.helpers import write

GOLDEN = Path(__file__).parent / "golden" / "duel-local.json"


def test_the_plan_of_duel_local() -> None:
    resolved = load("duel-local")
    plan = json.loads(json.dumps(asdict(make_plan(resolved, group="20260131-093000-duel-local-4f2a"))))
    for run in (run for queue in plan["queues"] for run in queue["runs"]):
        # The schema's own tests say what is in a configuration: here it is that it goes with each run.
        assert run.pop("config") == resolved.points[0].configs[run["server"]].run_config().model_dump(mode="json")
    assert plan == json.loads(GOLDEN.read_text())


def test_the_price_of_each_server_goes_with_its_runs() -> None:
    words = ["pricing.usd_per_gpu_hour=2.5", "right:pricing.usd_per_gpu_hour=4"]
    plan = make_plan(load("duel-local", words), group="g", repeats=1)
    assert {run.server: run.usd_per_gpu_hour for run in plan.runs} == {"left": 2.5, "right": 4.0}


def _turns(plan: GroupPlan) -> list[list[tuple[str, int, str]]]:
    return [[(r.server, r.repeat, r.sweep.get("training.seed", "")) for r in q.runs] for q in plan.queues]


def test_servers_of_one_slot_take_turns_through_points_and_repeats() -> None:
    found = load("duel-local", ["training.seed=1,2"], multirun=True)
    assert _turns(make_plan(found, group="g", repeats=2)) == [
        [(s, r, p) for r in (0, 1) for p in ("1", "2") for s in ("left", "right")]
    ]


def test_machines_and_slots_have_queues_of_their_own() -> None:
    write("mine.yaml", "servers:\n  a: {}\n  b: {address: h1}\n  c: {address: h1, slot: two}\n  d: {address: h1}\n")
    plan = make_plan(load("mine"), group="g", repeats=1)
    assert {q.key: [r.server for r in q.runs] for q in plan.queues} == {
        "local-default": ["a"],
        "h1-default": ["b", "d"],
        "h1-two": ["c"],
    }


def test_one_address_by_two_ports_or_two_configurations_is_two_machines() -> None:
    ways = ["{port: 2201}", "{port: 2202}", "{config: /c}", "{port: 2201}"]
    lines = [f"  s{i}: {{address: localhost, ssh: {way}}}\n" for i, way in enumerate(ways)]
    write("mine.yaml", "servers:\n" + "".join(lines))
    plan = make_plan(load("mine"), group="g", repeats=1)
    assert [[r.server for r in q.runs] for q in plan.queues] == [["s0", "s3"], ["s1"], ["s2"]]
    assert [(q.access.port, q.access.config) for q in plan.queues] == [(2201, None), (2202, None), (None, "/c")]
    assert len({q.key for q in plan.queues}) == 3


def test_queues_that_would_have_one_name_get_two() -> None:
    write("mine.yaml", "servers:\n  a: {address: h.1}\n  b: {address: h-1}\n  c: {address: h-1, workdir: /w}\n")
    keys = [q.key for q in make_plan(load("mine"), group="g").queues]
    assert len(set(keys)) == 3
    assert keys == [q.key for q in make_plan(load("mine"), group="other").queues]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["local", "h1", "h2"]), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3))
def test_every_run_is_there_once_and_no_server_is_ahead_by_more_than_one(
    addresses: list[str], repeats: int, seeds: int
) -> None:
    lines = [f"  s{i}: {{address: {a}, vendor: cpu}}" for i, a in enumerate(addresses)]
    write("mine.yaml", "servers:\n" + "\n".join(lines) + "\n")
    found = load("mine", [f"training.seed=range(0,{seeds})"], multirun=True)
    plan = make_plan(found, group="g", repeats=repeats)
    assert len({r.run for r in plan.runs}) == len(plan.runs) == len(addresses) * repeats * seeds
    for queue in plan.queues:
        done = {r.server: 0 for r in queue.runs}
        for run in queue.runs:
            done[run.server] += 1
            assert max(done.values()) - min(done.values()) <= 1


def test_repeats_default_to_five_for_a_duel_and_one_alone() -> None:
    write("one.yaml", "servers: {a: {}}\n")
    write("two.yaml", "servers: {a: {}, b: {}}\n")
    assert len(make_plan(load("one"), group="g").runs) == 1
    assert len(make_plan(load("two"), group="g").runs) == 10
    assert len(make_plan(load("duel-local"), group="g").runs) == 6
    assert len(make_plan(load("duel-local", servers=["left"]), group="g").runs) == 3


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeats_are_refused(repeats: int) -> None:
    with pytest.raises(ConfigError, match="repeats must be at least 1"):
        make_plan(load("duel-local"), group="g", repeats=repeats)


@pytest.mark.parametrize(
    ("stage", "stages"),
    [("all", ["data", "train", "wrap"]), ("train", ["train"]), ("purge", ["purge"]), ("calibrate", ["calibrate"])],
)
def test_exactly_the_stages_asked_for(stage: str, stages: list[str]) -> None:
    plan = make_plan(load("duel-local"), group="g", stage=stage)
    assert [s.stage for s in plan.runs[0].stages] == stages
    assert all(s.module_args[-1] == f"stage={s.stage}" for s in plan.runs[0].stages)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'train'"):
        make_plan(load("duel-local"), group="g", stage="trian")


def test_a_calibration_in_the_run_stands_before_its_training_and_spreads_as_it_does() -> None:
    found = load("duel-local", ["calibrate=true", "training.parallel.data=2"])
    assert [(s.stage, s.processes) for s in make_plan(found, group="g").runs[0].stages] == [
        ("data", 1),
        ("calibrate", 2),
        ("train", 2),
        ("wrap", 1),
    ]
    assert [s.stage for s in make_plan(found, group="g", stage="data").runs[0].stages] == ["data"]
    with pytest.raises(ConfigError, match="calibrate=true measures with our own"):
        make_plan(load("duel-local", ["runner={name: command, argv: [x]}", "calibrate=true"]), group="g")


GPUS = ["left:training=cuda", "right:training=rocm"]


def _variables(*words: str) -> list[dict[str, str]]:
    plan = make_plan(load("duel-local", [*GPUS, *words]), group="g", repeats=1)
    return [dict(run.stages[1].env) for run in plan.runs]


def test_what_gpu_trainings_want_is_the_same_on_both_sides_and_a_user_s_to_change() -> None:
    ours = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert _variables() == [ours, ours]
    tensor = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "GPU_MAX_HW_QUEUES": "2"}
    assert _variables("training.parallel.tensor=2") == [{**ours, **tensor}] * 2
    assert (
        _variables("launcher.env.PYTORCH_ALLOC_CONF=null", "launcher.env.NCCL_DEBUG=INFO")
        == [{"NCCL_DEBUG": "INFO"}] * 2
    )
    assert _variables("servers.left.env.PYTORCH_ALLOC_CONF=x", "launcher.env.PYTORCH_ALLOC_CONF=y") == [
        {"PYTORCH_ALLOC_CONF": "x"},
        {"PYTORCH_ALLOC_CONF": "y"},
    ]


def test_a_command_gets_only_what_the_profile_says() -> None:
    words = ["runner={name: command, argv: [x], env: {A: runner, B: runner}}", "servers.left.env.B=server"]
    plan = make_plan(load("duel-local", [*GPUS, *words, "launcher.env={A: launcher, C: launcher}"]), group="g")
    assert plan.runs[0].stages[0].env == {"A": "runner", "B": "server", "C": "launcher"}


def test_a_secret_has_no_place_in_a_launcher_s_variables() -> None:
    with pytest.raises(ConfigError, match="looks like a secret"):
        load("duel-local", ["launcher.env.HF_TOKEN=hf_x"])


def test_only_the_training_has_many_processes() -> None:
    found = load("duel-local", ["training.parallel.tensor=2", "training.parallel.data=2"])
    assert [(s.stage, s.processes) for s in make_plan(found, group="g").runs[0].stages] == [
        ("data", 1),
        ("train", 4),
        ("wrap", 1),
    ]
    assert [s.processes for s in make_plan(load("smoke-local"), group="g").runs[0].stages] == [2]


def test_a_command_is_one_stage_with_its_own_argv() -> None:
    write(
        "mine.yaml",
        "runner: {name: command, argv: [echo, '${RUN}']}\n".replace("${RUN}", "hi") + "servers: {a: {}}\n",
    )
    (stage,) = make_plan(load("mine"), group="g").runs[0].stages
    assert (stage.stage, stage.argv, stage.module_args, stage.env) == ("train", ("echo", "hi"), (), {})
    with pytest.raises(ConfigError, match="no stage 'data'"):
        make_plan(load("mine"), group="g", stage="data")


def test_the_environment_is_the_servers_with_the_threads_beneath() -> None:
    words = ["training.threads=3", "servers.left.env.FOO=1", "servers.right.env.OMP_NUM_THREADS=8"]
    left, right = make_plan(load("duel-local", words), group="g").runs[:2]
    assert left.stages[0].env == {"OMP_NUM_THREADS": "3", "FOO": "1"}
    assert right.stages[0].env == {"OMP_NUM_THREADS": "8"}


def test_a_swept_variable_stands_in_the_stages_and_not_in_the_machine() -> None:
    words = ["servers.left.env={A: x, B: y}", "servers.left.env.B=1,2"]
    plan = make_plan(load("duel-local", words, multirun=True), group="g", repeats=1)
    assert plan.servers["left"].env == {"A": "x"}
    assert [r.stages[0].env["B"] for r in plan.runs if r.server == "left"] == ["1", "2"]


def test_a_servers_own_times_go_before_the_profiles() -> None:
    words = ["timeout_s=60", "servers.left.timeout_s=5", "servers.left.cooldown_s=0", "cooldown_s=2"]
    plan = make_plan(load("duel-local", words), group="g")
    assert {r.server: r.stages[0].timeout_s for r in plan.runs} == {"left": 5, "right": 60}
    assert {n: s.cooldown_s for n, s in plan.servers.items()} == {"left": 0, "right": 2}
    assert plan.queues[0].cooldown_s == 2


COMMAND = "name: command, argv: [x]"


def _nodes(nodes: str, *words: str, runner: str = "") -> GroupPlan:
    servers = f"servers:\n  many: {{nodes: {nodes}, vendor: cpu}}\n  one: {{address: h1, vendor: cpu}}\n"
    write("mine.yaml", servers + (f"runner: {{{runner}}}\n" if runner else ""))
    return make_plan(load("mine", words), group="g", repeats=1)


def test_nodes_share_processes_and_the_last_one_tells_the_iterations() -> None:
    plan = _nodes("[h1, h2]", "many:training.parallel.data=2")
    queue = next(q for q in plan.queues if q.nodes)
    assert [a.address for a in queue.nodes] == ["h1", "h2"]
    assert queue.key == "h1-x2-default"
    (run,) = queue.runs
    assert run.log_node == 1
    assert [(s.stage, s.processes) for s in run.stages] == [("data", 1), ("train", 2), ("wrap", 1)]
    assert [q.key for q in plan.queues if not q.nodes] == ["h1-default"]  # a queue of its own, in the same slot


def test_one_node_is_a_plain_server() -> None:
    plan = _nodes("[h1]")
    (queue,) = plan.queues
    assert (queue.key, queue.nodes, queue.address) == ("h1-default", (), "h1")
    assert {run.log_node for run in queue.runs} == {0}


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ("", "training.parallel: 1 process cannot be shared evenly by the 2 nodes of server 'many'"),
        ("name: smoke, processes: 3", "runner.processes: 3 processes cannot be shared evenly"),
        (f"{COMMAND}, log_node: 2", "runner.log_node is 2, but server 'many' has 2 nodes, counted from 0"),
    ],
)
def test_what_nodes_cannot_share_is_refused(runner: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _nodes("[h1, h2]", runner=runner)


def test_a_command_says_which_node_tells_the_iterations() -> None:
    plan = _nodes("[h1, h2]", "many:runner.log_node=1", runner=COMMAND)
    assert {run.server: run.log_node for run in plan.runs} == {"many": 1, "one": 0}
    assert {stage.processes for run in plan.runs for stage in run.stages} == {1}
