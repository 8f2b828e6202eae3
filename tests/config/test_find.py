"""Finding profiles and server files, writing a server file, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.config import find_profiles, find_servers, load, profile_path, user_folder, write_server
from cockpit.config.models import gpu_list
from cockpit.core.errors import ConfigError
from tests.config.helpers import servers_of, write


def test_profiles_are_found_with_their_descriptions_and_a_broken_one_hides_none() -> None:
    write("mine.yaml", "description: My own\nservers: {a: {}}\n")
    write("broken.yaml", "a: [\n")
    found = {p.name: p for p in find_profiles()}
    assert found["mine"].description == "My own"
    assert found["mine"].user
    assert not found["duel-local"].user
    assert found["duel-local"].description
    assert "line" in (found["broken"].problem or "")
    assert profile_path("mine") == user_folder() / "mine.yaml"


def test_every_shipped_profile_loads() -> None:
    for info in find_profiles():
        assert load(info.name).points, info.name


def test_every_shipped_choice_composes() -> None:
    shipped = Path(profile_path("duel-local")).parent
    for group in ("model", "data", "training", "runner"):
        for path in sorted((shipped / group).glob("*.yaml")):
            config = servers_of("duel-local", [f"{group}={path.stem}"])["left"]
            assert getattr(config, group).name == path.stem


def test_a_written_server_serves_any_profile_and_the_defaults_list() -> None:
    path = write_server("box", {"address": "me@box", "vendor": "nvidia", "gpus": "0-1", "env": {"A": 1}})
    assert path == user_folder() / "server" / "box.yaml"
    write("mine.yaml", "defaults:\n  - server@servers.box: box\n  - _self_\n")
    for configs in (servers_of("mine"), servers_of("duel-local", servers=["box"])):
        server = configs["box"].servers["box"]
        assert (server.address, server.vendor, server.gpus, server.env) == ("me@box", "nvidia", (0, 1), {"A": "1"})
    info = {s.name: s for s in find_servers()}["box"]
    assert (info.address, info.vendor, info.user, info.problem) == ("me@box", "nvidia", True, None)


def test_a_server_can_be_written_from_words() -> None:
    write_server("8x", ["address=me@box", "env.A=1", "env.B='a b'", "gpus=0-3", "python=${oc.env:HOME}/py"])
    server = servers_of("duel-local", servers=["8x"])["8x"].servers["8x"]
    assert (server.address, server.env, server.gpus) == ("me@box", {"A": "1", "B": "a b"}, (0, 1, 2, 3))
    assert server.python == "${oc.env:HOME}/py"


def test_a_server_file_is_not_overwritten_unless_asked() -> None:
    path = write_server("box", {"address": "one"})
    with pytest.raises(ConfigError, match="already"):
        write_server("box", {"address": "two"})
    assert "one" in path.read_text()
    write_server("box", {"address": "two"}, overwrite=True)
    assert "two" in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["box.yaml"]


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("../x", {}, "no server name"),
        ("box", ["adress=x"], "Did you mean 'address'?"),
        ("box", ["address"], "needs a '='"),
        ("box", ["slots=1,2"], "takes one value here"),
        ("box", ["gpus=x"], "'gpus=x': gpus 'x' is no list"),
        ("box", ["env.HF_TOKEN=hunter2"], "name it in secrets"),
        ("a b", {}, "no server name"),
        ("box", {"adress": "x"}, "Did you mean 'address'?"),
        ("box", {"vendor": "intel"}, "must be one of"),
        ("box", {"env": {"HF_TOKEN": "hunter2"}}, "name it in secrets"),
        ("box", {"python": "???"}, "stands for one that is missing"),
    ],
)
def test_a_server_that_does_not_fit_is_not_written(name: str, values: dict[str, Any] | list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        write_server(name, values)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert not list(user_folder().rglob("*.yaml"))


TEXTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20) | st.sampled_from(
    ["1e5", "true", "null", "${oc.env:HOME}", "\\${x}", "\\\\${x}", "a: b", "- x", "~", "0x1f", "1_000"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.from_regex(r"E[A-Z]{0,5}", fullmatch=True), TEXTS, max_size=3),
    TEXTS.filter(lambda t: t != "???"),
)
def test_a_written_server_reads_back_as_it_was_given(env: dict[str, str], python: str) -> None:
    from omegaconf import OmegaConf

    path = write_server("box", {"env": env, "python": python}, overwrite=True)
    data = OmegaConf.to_container(OmegaConf.load(path), resolve=True, throw_on_missing=True)
    assert data == {"env": env, "python": python}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=4))
def test_gpu_ranges_mean_their_indices(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{a}-{a + n}" if n else str(a) for a, n in ranges)
    expected = [i for a, n in ranges for i in range(a, a + n + 1)]
    if len(set(expected)) < len(expected):
        with pytest.raises(ValueError, match="twice"):
            gpu_list(text)
    else:
        assert gpu_list(text) == expected


def test_a_group_s_choices_say_what_they_are() -> None:
    write("model/mine.yaml", "# A model of mine.\nlayers: 2\n")
    write("model/said.yaml", "# Not this.\nname: said\ndescription: But this\n")
    found = {p.name: p for p in find_profiles("model")}
    assert (found["mine"].description, found["mine"].user) == ("A model of mine", True)
    assert found["said"].description == "But this"
    assert "Qwen2.5 7B" in found["qwen2_5vl_7b"].description
    assert all(info.description for info in found.values())


def test_importing_config_and_plan_loads_nothing_heavy() -> None:
    code = (
        "import sys, cockpit.config, cockpit.plan\n"
        "heavy = {'hydra', 'omegaconf', 'pydantic', 'yaml', 'numpy', 'platformdirs'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
