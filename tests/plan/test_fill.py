"""Configuration keys in a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.config import load
from cockpit.core.errors import ConfigError
from cockpit.plan import make_plan
from cockpit.plan.fill import fill

KNOWN = {"seq_length": "4096", "output": "${OUT_DIR}", "training.micro_batch": "2"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--seq={seq_length}", "--seq=4096"),
        ("{output}/log", "${OUT_DIR}/log"),
        ("{training.micro_batch}{seq_length}", "24096"),
        ("{{seq_length}}", "{seq_length}"),
        ("${seq_length}", "${seq_length}"),
        ('{"bf16": {"enabled": true}}', '{"bf16": {"enabled": true}}'),
        ("{0} {} {SEQ}", "{0} {} {SEQ}"),
    ],
)
def test_keys_are_filled_and_other_braces_stay(text: str, filled: str) -> None:
    assert fill(text, KNOWN, "runner.argv") == filled


@given(st.text())
def test_text_without_a_key_is_left_alone(text: str) -> None:
    assert fill(text.replace("{", "["), KNOWN, "x") == text.replace("{", "[")


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"runner\.argv: there is no value for \{seq_lenght\}.*seq_length"):
        fill("{seq_lenght}", KNOWN, "runner.argv")


def test_a_command_gets_its_keys_per_server_and_a_server_s_variables_win() -> None:
    words = [
        "runner={name: command, argv: [train, --seq, '{seq_length}', --out, '{output}', --on, '{server}'], "
        "env: {SEQ: '{seq_length}', KEEP: profile}}",
        "left:training.sequence_length=256",
        "servers.right.env={KEEP: server}",
    ]
    plan = make_plan(load("duel-local", words), group="g", repeats=1)
    left, right = plan.runs
    assert left.stages[0].argv == ("train", "--seq", "256", "--out", "${OUT_DIR}", "--on", "left")
    assert right.stages[0].argv[2] == "128"
    assert left.stages[0].env == {"SEQ": "256", "KEEP": "profile"}
    assert right.stages[0].env == {"SEQ": "128", "KEEP": "server"}
