"""Words and sweeps against Hydra's own parser, composition and basic sweeper."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from cockpit.config import load
from cockpit.config.find import folders
from cockpit.config.models import Profile
from cockpit.config.sweep import expand, split
from runners.compose import ComposeError, Composer
from runners.schema import RunConfig
from tests.config.helpers import refusal

KEYS = st.sampled_from(["training.seed", "training.learning_rate", "data.name", "training.parallel.tensor", "model"])
ATOMS = st.one_of(
    st.integers(-99, 99).map(str),
    st.sampled_from(["1e-4", "3e-4", "0.5", "true", "tiny", "a-b", "a b", "'x,y'", '"q"', "[1,2]", "{k: 1}"]),
)
LISTS = st.lists(ATOMS, min_size=1, max_size=3).map(",".join)
NUMBERS = st.lists(st.integers(0, 9).map(str), min_size=1, max_size=3).map(",".join)
VALUES = st.one_of(
    ATOMS,
    st.just("null"),
    LISTS,
    LISTS.map(lambda text: f"choice({text})"),
    st.tuples(st.integers(0, 3), st.integers(4, 7), st.integers(1, 3)).map(lambda r: f"range({r[0]},{r[1]},{r[2]})"),
    NUMBERS.map(lambda text: f"sort({text},reverse=true)"),
    NUMBERS.map(lambda text: f"str(choice({text}))"),
)


def _typed(words: list[str]) -> dict[str, Any]:
    return {o.get_key_element(): o.value() for o in OverridesParser.create().parse_overrides(words)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KEYS, VALUES), max_size=4))
def test_points_are_those_of_hydras_basic_sweeper(pairs: list[tuple[str, str]]) -> None:
    words = [f"{key}={'tiny,tiny' if key == 'model' and ',' in value else value}" for key, value in pairs]
    words = [w if not w.startswith("model=") or "tiny" in w else "model=tiny" for w in words]
    words = [
        w if not w.startswith("model=") or w in ("model=tiny", "model=tiny,tiny") else "model=tiny" for w in words
    ]
    expected = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)[0]
    with Composer(folders(), Profile) as composer:
        points = expand(composer, composer.parse(words))
    assert [{w.choice: w.value for w in point} for point, _ in points] == [_typed(list(job)) for job in expected]


VALUE_WORDS = st.lists(
    st.sampled_from(
        [
            "++training.seed=3",
            "++training.seed=4",
            "++training={seed: 5}",
            "++training={adam_eps: 1e-9, parallel: {data: 2}}",
            "++training.parallel.data=4",
            "++data.name='a b'",
            "++data.name=",
            "++data.name=${model.name}",
            "++data.paths=[a,b]",
            "++data.paths=[c]",
            "++servers.left.env.FOO=1",
            "++servers.left.env={BAR: x}",
            "++servers.right.overrides=['training.seed=1']",
            "~training.min_learning_rate",
            "training.train_iters=7",
            "~data.tokenizer_vocab",
            "data=synthetic",
            "theme=rainbow",
        ]
    ),
    max_size=6,
    unique=True,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUE_WORDS)
def test_composition_is_hydras(words: list[str]) -> None:
    with Composer(folders(), Profile) as composer:
        expected = OmegaConf.to_container(compose(config_name="duel-local", overrides=words), resolve=True)
        assert composer.compose("duel-local", composer.parse(words)).data == expected


@settings(max_examples=120, deadline=None)
@given(
    st.text(max_size=30)
    | st.from_regex(r"[+~]{0,2}(training|model|data)[.=@:,()\[\]{}'\"\\\w ]{0,15}", fullmatch=True)
)
def test_any_text_is_a_word_or_one_sentence(text: str) -> None:
    with Composer(folders(), RunConfig) as composer:
        try:
            composer.parse([text])
        except ComposeError as error:
            sentence = error.message
        else:
            return
    assert sentence.startswith("on the command line, ")
    assert "\n" not in sentence


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True), st.text(max_size=12))
def test_the_prefix_is_what_stands_before_the_first_colon(server: str, value: str) -> None:
    common, addressed = split([f"{server}:training.seed={value}", f"training.seed={server}:{value}"])
    assert [(a.server, a.text) for a in addressed] == [(server, f"training.seed={value}")]
    assert common == [f"training.seed={server}:{value}"]


def test_a_sweep_names_its_values_as_text() -> None:
    found = load("duel-local", ["training.learning_rate=1e-4,3e-4", "data.name='a b','c,d'"], multirun=True)
    assert [p.sweep for p in found.points] == [
        {"training.learning_rate": "0.0001", "data.name": "a b"},
        {"training.learning_rate": "0.0001", "data.name": "c,d"},
        {"training.learning_rate": "0.0003", "data.name": "a b"},
        {"training.learning_rate": "0.0003", "data.name": "c,d"},
    ]
    assert [p.configs["right"].training.learning_rate for p in found.points] == [1e-4, 1e-4, 3e-4, 3e-4]


def test_a_glob_runs_through_the_files_of_a_group() -> None:
    found = load("duel-local", ["data=glob([py*,s*],exclude=*thetic)"], multirun=True)
    assert [p.sweep for p in found.points] == [{"data": "pydoc"}]


def test_multirun_without_a_sweep_is_one_point() -> None:
    found = load("duel-local", ["training.seed=3"], multirun=True)
    assert [p.sweep for p in found.points] == [{}]


def test_a_word_for_a_server_holds_at_every_point() -> None:
    found = load("duel-local", ["left:training.seed=9", "training.seed=1,2"], multirun=True)
    assert [[c.training.seed for c in p.configs.values()] for p in found.points] == [[9, 1], [9, 2]]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("training.learning_rate=interval(0,1)", "interval() names no values"),
        ("training.seed=range(3,1)", "no values"),
        ("training.seed=range(1,3,0)", "STEP other than 0"),
        ("training.seed=range(0.5,3,0.0)", "STEP other than 0"),
        ("training.seed=range(1,1000000000000)", "more than 10,000 points"),
        ("training.seed=glob(*)", "is none"),
        ("model=glob(z*)", "no values"),
        ("model=tiny,big", "there is no model 'big'"),
        ("training.seed=1,x", "must be a whole number, not 'x'"),
        ("repeats=1,2", "of the whole group"),
        ("theme=nord,rainbow", "of the whole group"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused(word: str, says: str) -> None:
    assert says in str(refusal("duel-local", word, multirun=True))


def test_a_sweep_does_not_change_the_machine() -> None:
    assert "one machine" in str(refusal("duel-local", "servers.left.address=local,other", multirun=True))
