"""What is known of a log beforehand."""

from __future__ import annotations

import pytest

from cockpit.core.events import Iteration
from cockpit.parse.stream import Declared, StreamParser

NEMO = (
    b"Training epoch 0, iteration 0/9 | lr: 1e-4 | global_batch_size: 4 | global_step: 0 | reduced_train_loss: 2.0\n"
)
TITAN = b"[titan] 2026-05-18 16:04:31,000 - root - INFO - step:  1  loss: 12.2  grad_norm:  4.5  tps: 86  mfu: 0.5%\n"
MEGATRON = b" iteration  1/ 10 | elapsed time per iteration (ms): 100.0 | lm loss: 3.0 |\n"


def _iterations(data: bytes, declared: Declared | None) -> list[Iteration]:
    parser = StreamParser(declared)
    return [e for e in parser.feed(data, 0) + parser.finish() if isinstance(e, Iteration)]


def test_tokens_follow_from_the_declared_length_and_the_log_s_own_batch() -> None:
    (e,) = _iterations(NEMO, Declared(sequence_length=100, global_batch=7))
    assert (e.samples, e.tokens) == (4, 400)


def test_tokens_follow_from_the_declared_batch_where_the_log_says_none() -> None:
    (e,) = _iterations(TITAN, Declared(sequence_length=100, global_batch=7))
    assert (e.samples, e.tokens) == (7, 700)


def test_nothing_declared_leaves_tokens_unknown() -> None:
    (e,) = _iterations(TITAN, None)
    assert e.tokens is None
    (e,) = _iterations(TITAN, Declared(sequence_length=100))
    assert e.tokens is None


def test_the_log_s_own_arguments_win_over_what_was_declared() -> None:
    head = b"---- arguments ----\n  seq_length ........ 50\n  global_batch_size .... 2\n---- end of arguments ----\n"
    (e,) = _iterations(head + MEGATRON, Declared(sequence_length=100, global_batch=7))
    assert e.tokens == 100


def test_a_named_format_alone_gives_iterations() -> None:
    assert [e.step for e in _iterations(MEGATRON + NEMO.replace(b"iteration 0", b"iteration 8"), None)] == [1]
    assert [e.loss for e in _iterations(MEGATRON + NEMO, Declared(format="megatron"))] == [3.0]
    assert [e.loss for e in _iterations(TITAN + MEGATRON, Declared(format="torchtitan"))] == [12.2]


def titan(text: str, second: float, colour: str = "") -> str:
    """A line of torchtitan's as its logger writes it, each `~` the start of a colour."""
    stamp = f"2026-05-18 16:04:{second:06.3f}".replace(".", ",")
    return f"[rank0]:[titan] {stamp} - root - INFO - {text.replace('~', colour)}\n"


@pytest.mark.parametrize("colour", ["", "\x1b[34m", "\x1b[38;2;180;60;0m"])
def test_a_validation_is_no_iteration_and_its_time_is_of_no_step(colour: str) -> None:
    log = titan("~step:  1  ~loss:  9.0  ~grad_norm:  0.8  ~memory:  9.4GiB(64.9%)  ~tps: 72", 1, colour)
    log += titan("~step: 10  ~loss:  8.0  ~grad_norm:  0.8  ~memory:  9.4GiB(64.9%)  ~tps: 7,282", 10, colour)
    log += titan("~validate step: 10  ~loss:  7.5  ~memory:  9.4GiB(64.9%)  ~tps: 9,282", 15, colour)
    log += titan("~step: 20  ~loss:  6.0  ~grad_norm:  0.8  ~memory:  9.4GiB(64.9%)  ~tps: 7,282", 25, colour)
    found = _iterations(log.encode(), Declared(1024, 8))
    assert [(e.step, e.loss, e.step_s, e.tokens) for e in found] == [
        (1, 9.0, None, 8192),
        (10, 8.0, 1.0, 8192),
        (20, 6.0, 1.0, 8192),
    ]


def test_the_time_of_a_restart_is_of_no_step() -> None:
    step = "step: {:2}  loss:  9.0  grad_norm:  0.8  memory:  9.4GiB(64.9%)  tps: 72"
    log = titan(step.format(10), 1) + titan(step.format(20), 11) + titan("Training starts at step 21", 40)
    log += titan(step.format(30), 50) + titan(step.format(40), 59)
    assert [e.step_s for e in _iterations(log.encode(), None)] == [None, 1.0, None, 0.9]
