"""Bad input: one sentence that says what, where and how to fix it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cockpit.config import find_profiles, user_folder, validate_all
from cockpit.core.errors import ConfigError
from tests.config.helpers import refusal, write

SERVER = "servers: {a: {}}\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("duel-locl", "Did you mean 'duel-local'"),
        ("../duel-local", "is a path"),
        ("/etc/passwd", "is a path"),
        ("model\\tiny", "is a path"),
        ("duel-local.yaml", "Give the profile's name: duel-local"),
        ("", "there is no profile ''"),
        ("a\nb", "there is no profile 'a\\nb'"),
    ],
)
def test_a_name_that_is_no_profile(name: str, says: str) -> None:
    assert says in str(refusal(name))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("training:\n  learning_rte: 1\n" + SERVER, 2, "Did you mean 'training.learning_rate'?"),
        ("learning_rate: 1\n" + SERVER, 1, "Did you mean 'training.learning_rate'?"),
        ("training.seed: 1\n" + SERVER, 1, "Nest it"),
        ("servers:\n  a:\n    venodr: x\n", 3, "Did you mean 'servers.a.vendor'?"),
        (
            "defaults: [{model: tiny}, _self_]\nmodel:\n  heads: four\n" + SERVER,
            3,
            "must be a whole number, not 'four'",
        ),
        ("training: {train_iters: true}\n" + SERVER, 1, "must be a whole number, not true"),
        ("training:\n  train_iters: 0\n" + SERVER, 2, "must be at least 1, not 0"),
        ("repeats: 0\n" + SERVER, 1, "repeats must be at least 1, not 0"),
        (
            "training:\n  parallel:\n    tensor: 3\n" + SERVER,
            3,
            "model.heads 4 does not divide by training.parallel.tensor 3",
        ),
        ("training:\n  global_batch: 7\n" + SERVER, 2, "global_batch 7 does not divide"),
        ("model: 5\n" + SERVER, 1, "model must be a mapping of keys to values"),
        ("defaults: [{model: tiny}, _self_]\nmodel: [5]\n" + SERVER, 2, "model must be keys, not a list"),
        ("- a\n", 1, "a list or a text stands where keys should be"),
        ("defaults: tiny\n" + SERVER, 1, "defaults must be a list"),
        ("defaults:\n  - model: tny\n  - _self_\n" + SERVER, 2, "Did you mean 'tiny'?"),
        ("defaults:\n  - model: ???\n  - _self_\n" + SERVER, 2, "model is not chosen"),
        ("data:\n  name: ???\n" + SERVER, 2, "data.name has no value yet"),
        ("data:\n  name: ${no.such}\n" + SERVER, 2, "'no.such'"),
        ("runner:\n  name: megatrn\n" + SERVER, 2, "Did you mean 'megatron'?"),
        ("runner:\n  name: command\n" + SERVER, 1, "runner.argv is missing"),
        ("servers:\n  'bad name': {}\n", 2, "'bad name' is no server name"),
        ("servers:\n  a: {}\n  b: local\n", 3, "servers.b must be a mapping"),
        ("servers:\n  a:\n    gpus: 3-1\n", 3, "gpus '3-1' is no list of GPUs"),
        ("servers:\n  a:\n    address: -oProxyCommand=x\n", 3, "is no address"),
        ("servers:\n  a:\n    env:\n      X: true\n", 4, "quote it"),
        ("servers:\n  a:\n    overrides:\n      - training.seed=1\n      - training.sed=2\n", 5, "'training.seed'?"),
        ("servers:\n  a:\n    overrides: [repeats=2]\n", 3, "repeats is of the whole group"),
        ("servers:\n  a:\n    training: cuba\n", 3, "Did you mean 'cuda'"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_line(text: str, line: int, says: str) -> None:
    path = write("mine.yaml", text)
    error = refusal("mine")
    assert (error.file, error.line) == (path, line)
    assert str(error).startswith(f"{path}:{line}: ")
    assert says in str(error)


def test_the_line_is_of_the_group_file_that_says_it() -> None:
    path = write("model/big.yaml", "# a comment\nname: big\nhiden: 4\n")
    write("mine.yaml", "defaults: [{model: big}, _self_]\n" + SERVER)
    error = refusal("mine")
    assert (error.file, error.line) == (path, 3)
    path = write("server/box.yaml", "address: x\nslot: Big Slot\n")
    error = refusal("duel-local", servers=["box"])
    assert (error.file, error.line) == (path, 2)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a: 1\nb: [1\nc: 2\n", 3, 2), ("a: 1\na: 2\n", 2, 1), ("a:\n\tb: 1\n", 2, 1), ("a: 'x\n", 2, 1)],
)
def test_broken_yaml_is_named_with_line_and_column(text: str, line: int, column: int) -> None:
    path = write("mine.yaml", text)
    error = refusal("mine")
    assert (error.file, error.line, error.column) == (path, line, column)
    assert "broken YAML" in str(error)


def test_a_file_that_is_no_text_is_named() -> None:
    path = write("mine.yaml", "")
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal("mine").file == path


def test_defaults_in_a_circle_are_refused() -> None:
    write("mine.yaml", "defaults: [mine, _self_]\n" + SERVER)
    assert "circle" in str(refusal("mine"))


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("training.seed", "needs a '='"),
        ("=3", "no key before the '='"),
        ("training.learning_rte=1", "Did you mean 'training.learning_rate'?"),
        ("learning_rate=1", "Did you mean 'training.learning_rate'?"),
        ("training.seed.x=1", "'training.seed' is a value"),
        ("training.train_iters=abc", "must be a whole number, not 'abc'"),
        ("training.train_split=1", "Did you mean 'data.train_split'?"),
        ("data.train_split=1.5", "must be at most 1"),
        ("training.parallel.tensor=3", "does not divide"),
        ("training.seed=1,2", "Add --multirun"),
        ("training.seed=choice(1,2)", "Add --multirun"),
        ("training.seed=rnge(1,2)", "Did you mean 'range'"),
        ("data.paths=[a,b", "cannot be read near column"),
        ("model=tny", "Did you mean 'tiny'?"),
        ("model=3", "a choice of model is a name"),
        ("modl=tiny", "Did you mean 'model'?"),
        ("server=local", "Write server@"),
        ("launcher.kind=docker", "must be one of process"),
        ("runner.epochs=3", "no key of the runner 'megatron'"),
        ("~training.adam_eps", "nothing to delete"),
        ("~training.seed=1,2", "Add --multirun"),
        ("hydra.verbose=true", "do nothing here"),
        ("lft:training.seed=3", "Did you mean 'left'?"),
        ("left:training.seed=3,4", "one value"),
        ("left:training.seed", "needs a '='"),
        ("left:training.sed=3", "Did you mean 'training.seed'?"),
        ("left:env.X=3", "Write servers.left.env.X=VALUE"),
        ("left:servers.right.slot=x", "cannot set this"),
        ("left:repeats=3", "of the whole group"),
        ("servers.lft.env.X=1", "Did you mean 'left'?"),
        ("server@servers.mid=local", "Put a + before"),
        ("servers.left.slots=2", "share the slot"),
        ("repeats=0", "at least 1"),
        ("timeout_s=-1", "greater than 0"),
        ("servers.left.secrets=[A B]", "no name of an environment variable"),
    ],
)
def test_a_word_that_cannot_be_used_is_shown(word: str, says: str) -> None:
    text = str(refusal("duel-local", word))
    assert says in text
    if "share the slot" not in says:
        assert text.startswith("on the command line, ")


@pytest.mark.parametrize(
    "word",
    [
        "servers.left.env.HF_TOKEN=hunter2",
        "servers.left.env={MY_API_KEY: hunter2}",
        "servers.left.env.PGPASSWORD=hunter2",
        "servers.left.env.HFTOKEN=hunter2",
        "servers.left.env.SSH_PRIVATE_KEY=hunter2",
        "servers.left.env.HTTPS_PROXY='http://me:hunter2@proxy:80'",
        "servers.left.env.NCCL_X=hf_hunter2hunter2hunter2",
    ],
)
def test_a_secret_in_an_environment_is_refused_and_not_repeated(word: str) -> None:
    text = str(refusal("duel-local", word))
    assert "hunter2" not in text
    assert "name it in secrets" in text


def test_a_variable_that_only_sounds_like_a_secret_is_taken() -> None:
    from tests.config.helpers import servers_of

    configs = servers_of("duel-local", ["servers.left.env.TOKENIZERS_PARALLELISM='false'"])
    assert configs["left"].servers["left"].env == {"TOKENIZERS_PARALLELISM": "false"}


def test_servers_that_are_nowhere() -> None:
    assert "Did you mean 'left'?" in str(refusal("duel-local", servers=["lef"]))
    assert "twice" in str(refusal("duel-local", servers=["left", "left"]))
    assert "names no server" in str(refusal("duel-local", servers=[]))
    write("empty.yaml", "description: none\n")
    assert "names no server" in str(refusal("empty"))


def test_servers_too_alike_for_their_runs_names() -> None:
    write("mine.yaml", "servers: {a_b: {}, a-b: {}}\n")
    assert "too alike" in str(refusal("mine"))


def _deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take the right to read `folder` away; root has it anyway, so for root the system call is replaced."""
    if os.geteuid() != 0:
        folder.chmod(0)
        return
    real = os.scandir

    def scandir(path: str | Path = ".") -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_profile_folder_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write("mine.yaml", SERVER)
    _deny(monkeypatch, user_folder())
    with pytest.raises(ConfigError) as listing:
        find_profiles()
    for error in (refusal("duel-local"), listing.value):
        assert str(user_folder()) in str(error)
        assert "Permission denied" in str(error)


def test_a_file_in_the_place_of_the_profile_folder_is_named() -> None:
    user_folder().parent.mkdir(parents=True)
    user_folder().write_text("")
    assert str(user_folder()) in str(refusal("duel-local"))


def test_validate_all_finds_every_problem() -> None:
    path = write("mine.yaml", "training:\n  sed: 1\n  train_iters: x\nservers:\n  a: {vendr: 1}\n")
    assert sorted((e.file, e.line) for e in validate_all("mine")) == [(path, 2), (path, 3), (path, 5)]
    assert validate_all("duel-local") == []
    assert validate_all("smoke-local") == []
    write("mine.yaml", "a: [\n")
    assert [e.line for e in validate_all("mine")] == [2]
