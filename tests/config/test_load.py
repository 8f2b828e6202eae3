"""What loading makes of profiles, servers and words."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.config import load, show
from runners.compose import compose_run
from tests.config.helpers import refusal, servers_of, write

PAIR = """
servers:
  a: {address: gpu1, vendor: nvidia}
  b: {address: gpu2, vendor: amd}
training:
  learning_rate: 2e-4
"""


def test_duel_local_is_the_workload_of_the_main_job() -> None:
    found = load("duel-local")
    assert found.base.repeats == 3
    assert list(found.points[0].configs) == ["left", "right"]
    for name, config in found.points[0].configs.items():
        spec = config.servers[name].spec(name, config)
        assert (spec.address, spec.vendor, spec.slot, spec.slots) == ("local", "cpu", "default", 1)
        assert (spec.cooldown_s, spec.stall_after_s) == (0.5, 120)
        training = config.training
        assert (training.backend, training.train_iters, training.threads) == ("cpu", 120, 1)
        assert (training.global_batch, training.micro_batch, training.sequence_length) == (8, 4, 128)
        assert (config.model.name, config.data.source, config.runner.name) == ("tiny", "pydoc", "megatron")


def test_smoke_local_has_the_defaults_of_the_seed() -> None:
    config = servers_of("smoke-local")["local"]
    values = config.runner.model_dump()
    assert {k: values[k] for k in ("epochs", "batch", "samples", "features", "classes", "lr", "seed")} == {
        "epochs": 2,
        "batch": 256,
        "samples": 4096,
        "features": 128,
        "classes": 4,
        "lr": 3e-3,
        "seed": 42,
    }


def test_tiny_has_a_million_parameters() -> None:
    model, data = compose_run(["model=tiny"]).model, compose_run().data
    head = model.hidden // model.heads
    attention = 2 * model.hidden * model.hidden + 2 * model.hidden * model.kv_heads * head
    layer = attention + 3 * model.hidden * model.ffn + 2 * model.hidden
    total = 2 * data.tokenizer_vocab * model.hidden + model.layers * layer + model.hidden
    assert 0.9e6 < total < 1.1e6


def test_the_seeds_grammar_holds_for_the_runner() -> None:
    config = compose_run(["training=rocm", "model=tiny", "training.learning_rate=5e-4", "data.samples=64"])
    assert (config.training.backend, config.training.learning_rate, config.data.samples) == ("rocm", 5e-4, 64)


def test_each_vendor_gets_its_training_beneath_the_profiles_own_values() -> None:
    write("pair.yaml", PAIR)
    configs = servers_of("pair")
    assert {n: c.training.backend for n, c in configs.items()} == {"a": "cuda", "b": "rocm"}
    assert {c.training.precision for c in configs.values()} == {"bf16"}
    assert {c.training.learning_rate for c in configs.values()} == {2e-4}


def test_a_chosen_group_lies_beneath_a_profile_without_defaults() -> None:
    write("plain.yaml", "servers: {a: {address: local}}\nrunner: {epochs: 7}\n")
    runner = servers_of("plain", ["runner=smoke"])["a"].runner
    assert (runner.name, runner.epochs, runner.batch) == ("smoke", 7, 256)


def test_a_users_profile_and_group_file_go_before_the_shipped_ones() -> None:
    write("duel-local.yaml", "description: mine\nservers: {solo: {}}\n")
    write("model/tiny.yaml", "layers: 2\n")
    found = load("duel-local", ["model=tiny"])
    assert found.base.description == "mine"
    assert found.points[0].configs["solo"].model.layers == 2


@pytest.mark.parametrize(
    ("detect", "words", "expected"),
    [
        ({}, [], ("cpu", "cpu")),
        ({"local": "nvidia"}, [], ("nvidia", "cuda")),
        ({"local": "amd"}, [], ("amd", "rocm")),
        ({"local": "nvidia"}, ["training=cpu"], ("cpu", "cpu")),
        ({}, ["training=rocm"], ("amd", "rocm")),
        ({}, ["servers.local.vendor=nvidia"], ("nvidia", "cuda")),
        ({}, ["servers.local.training=cuda"], ("nvidia", "cuda")),
        ({}, ["servers.local.address=far"], ("cpu", "cpu")),
    ],
)
def test_vendor_and_training_follow_from_each_other(
    detect: dict[str, str], words: list[str], expected: tuple[str, str]
) -> None:
    config = servers_of("smoke-local", words, detect=detect)["local"]
    assert (config.servers["local"].vendor, config.training.backend) == expected


def test_the_base_keeps_a_vendor_that_is_still_to_be_found() -> None:
    assert load("smoke-local").base.servers["local"].vendor == "auto"


def test_a_duel_on_the_cpu_stays_there_on_a_machine_with_gpus() -> None:
    configs = servers_of("duel-local", detect={"left": "nvidia", "right": "nvidia"})
    assert {c.training.backend for c in configs.values()} == {"cpu"}
    assert {c.servers[n].vendor for n, c in configs.items()} == {"cpu"}


def test_a_training_of_another_vendor_is_refused_where_it_was_said() -> None:
    write("pair.yaml", PAIR)
    error = refusal("pair", "training=rocm")
    assert "'training=rocm'" in str(error)
    assert "server 'a' has nvidia GPUs" in str(error)
    write("wrong.yaml", "servers:\n  a:\n    vendor: amd\n    training: cuda\n")
    error = refusal("wrong")
    assert (error.file, error.line) == (write("x.yaml", "").with_name("wrong.yaml"), 4)


def test_servers_selects_and_orders() -> None:
    assert list(servers_of("duel-local", servers=["right", "left"])) == ["right", "left"]
    assert list(servers_of("duel-local", servers=["right"])) == ["right"]


def test_a_ready_profile_runs_on_ones_own_servers_by_name() -> None:
    write("server/8xh200.yaml", "address: me@gpu1\nvendor: nvidia\ngpus: 0-3\n")
    write("server/mi300.yaml", "address: gpu2\nvendor: amd\noverrides: [training.seed=7]\n")
    words = ["8xh200:training.seed=5", "servers.8xh200.env.NCCL_DEBUG=WARN"]
    configs = servers_of("duel-local", words, servers=["8xh200", "mi300"])
    assert list(configs) == ["8xh200", "mi300"]
    one, two = configs.values()
    assert (one.training.backend, one.training.seed) == ("cuda", 5)
    assert (two.training.backend, two.training.seed) == ("rocm", 7)
    server = one.servers["8xh200"]
    assert (server.address, server.gpus, server.env) == ("me@gpu1", (0, 1, 2, 3), {"NCCL_DEBUG": "WARN"})
    assert one.training.train_iters == 120


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(*[st.none() | st.integers(1, 9999)] * 4), st.permutations(["own", "all", "addressed"]))
def test_a_word_for_a_server_beats_one_for_all_beats_the_servers_own_beats_the_file(
    values: tuple[int | None, ...], order: list[str]
) -> None:
    file, own, common, addressed = values
    seed = f"training: {{seed: {file}}}\n" if file is not None else ""
    said = f"overrides: [training.seed={own}]" if own is not None else ""
    write("levels.yaml", f"{seed}servers:\n  a: {{{said}}}\n  b: {{}}\n")
    words = {"all": f"training.seed={common}", "addressed": f"a:training.seed={addressed}"}
    given_words = {"own": None, "all": common, "addressed": addressed}
    configs = servers_of("levels", [words[k] for k in order if given_words[k] is not None])
    for_a = next((v for v in (addressed, common, own, file) if v is not None), 1234)
    for_b = next((v for v in (common, file) if v is not None), 1234)
    assert (configs["a"].training.seed, configs["b"].training.seed) == (for_a, for_b)


@pytest.mark.parametrize("word", ["training.seed=3", "+training.seed=3", "++training.seed=3"])
def test_a_key_that_no_file_names_needs_no_plus_and_takes_one(word: str) -> None:
    assert servers_of("duel-local", [word])["left"].training.seed == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data=synthetic"], "synthetic"),
        (["data=synthetic", "data=pydoc"], "pydoc"),
        (["+data=synthetic"], "synthetic"),
        (["data@data=synthetic"], "synthetic"),
        (["data=pydoc", "+data=synthetic"], "synthetic"),
        (["data={name: mine}"], "mine"),
        (["~data"], "pydoc"),
    ],
)
def test_the_last_choice_of_a_group_counts(words: list[str], expected: str) -> None:
    assert servers_of("duel-local", words)["left"].data.name == expected


def test_a_choice_that_a_profile_leaves_open_is_made_on_the_command_line() -> None:
    write("open.yaml", "defaults: [{model: '???'}, _self_]\nservers: {a: {}}\n")
    assert "model is not chosen" in str(refusal("open"))
    assert servers_of("open", ["model=tiny"])["a"].model.name == "tiny"


def test_a_choice_counts_also_where_another_choice_brings_its_own() -> None:
    write("model/wide.yaml", "name: wide\nhidden: 256\n")
    write("exp/one.yaml", "# @package _global_\ndefaults: [/model: tiny]\n")
    write("exp/two.yaml", "# @package _global_\ndefaults: [/model: wide]\n")
    write("mine.yaml", "defaults: [{exp: one}, _self_]\nservers: {a: {}}\n")
    assert servers_of("mine", ["exp=two"])["a"].model.name == "wide"
    assert servers_of("mine", ["exp=two", "model=tiny"])["a"].model.name == "tiny"


def test_deleting_a_key_gives_back_the_default_and_deleting_a_server_takes_it_away() -> None:
    left = servers_of("duel-local", ["~training.min_learning_rate"])["left"]
    assert left.training.min_learning_rate == 1e-4
    assert list(servers_of("duel-local", ["~servers.left"])) == ["right"]


def test_a_server_can_be_added_and_its_environment_set_from_the_command_line() -> None:
    configs = servers_of(
        "duel-local", ["+server@servers.mid=local", "servers.mid.env.FOO=1", "servers.mid.gpus=[0,2]"]
    )
    assert list(configs) == ["left", "right", "mid"]
    assert configs["mid"].servers["mid"].env == {"FOO": "1"}
    assert configs["mid"].servers["mid"].gpus == (0, 2)


def test_hydras_global_state_is_left_empty() -> None:
    from hydra.core.global_hydra import GlobalHydra

    load("duel-local")
    assert not GlobalHydra.instance().is_initialized()
    refusal("duel-local", "training.seed=x")
    assert not GlobalHydra.instance().is_initialized()


def test_show_is_plain_data_a_server() -> None:
    import json

    shown = show("duel-local", ["right:training.seed=9"])
    assert {n: d["training"]["seed"] for n, d in shown.items()} == {"left": 1234, "right": 9}
    assert json.loads(json.dumps(shown)) == shown
