"""`--output json`: every command prints one document, and nothing beside it."""

from __future__ import annotations

import json
from typing import Any

from tests.engine.conftest import Duel


def document(duel: Duel, *words: str) -> Any:
    """What a command prints; a second document, or a word beside it, is no JSON."""
    done = duel.call(*words, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_that_change_something_print_one_document_each(duel: Duel) -> None:
    duel.write(steps=2, repeats=1)
    script = document(duel, "run", "--profile", "toy", "--dry-run")
    assert script["type"] == "dry_run"
    assert "queue.json" in script["script"]
    duel.call("run", "--profile", "toy", "--detach")
    stopped = document(duel, "stop", "last")
    group = stopped["id"]
    assert (stopped["type"], stopped["runs"]) == ("group", [f"{group}.left.r1", f"{group}.right.r1"])
    fetched = document(duel, "fetch", "last")
    assert (fetched["id"], fetched["state"]) == (group, duel.group["state"])
    assert [row["path"] for row in fetched["runs"]] == [str(duel.runs / row["id"]) for row in fetched["runs"]]
    assert document(duel, "stop", "last")["state"] == duel.group["state"]
    assert document(duel, "tag", "last", "x", "y") == {"id": group, "tags": ["x", "y"]}
    assert document(duel, "rm", "last", "--yes") == {"deleted": stopped["runs"], "kept": []}
    added = document(duel, "servers", "add", "box", "address=local")
    assert (added["name"], added["path"].endswith("/server/box.yaml")) == ("box", True)
    begun = document(duel, "init", "--yes", "--server", "one=local", "--name", "mine")
    assert (begun["profile"], begun["servers"], len(begun["files"])) == ("mine", ["one"], 2)


def test_a_dry_run_of_build_is_a_document_too(duel: Duel) -> None:
    duel.write()
    words = ("build", "--profile", "toy", "launcher=container", "--dry-run")
    assert "docker" in document(duel, *words)["script"]


def test_an_unknown_option_is_said_of_the_command_that_was_typed(duel: Duel) -> None:
    for words, command in (
        (["servers", "add", "box", "address=local", "--nope"], "ekvi-cockpit servers add"),
        (["init", "--name", "zz", "--nope"], "ekvi-cockpit init"),
        (["profiles", "list", "--nope"], "ekvi-cockpit profiles list"),
    ):
        assert f"`--nope` is not an option of `{command}`. See `{command} --help`." in duel.call(*words).stderr


def test_help_of_shell_says_how_a_command_is_given(duel: Duel) -> None:
    assert "[-- ARGV ...]" in duel.call("shell", "--help").stdout
