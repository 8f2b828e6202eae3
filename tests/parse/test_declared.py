"""What is known of a log beforehand."""

from __future__ import annotations

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
