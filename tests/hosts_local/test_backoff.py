"""Pauses between tries grow, stay below their bound and differ."""

from __future__ import annotations

from cockpit.hosts.backoff import Backoff


def test_ceilings_double_up_to_the_bound_and_a_reset_begins_anew() -> None:
    highest = [0.0] * 9
    for _ in range(400):
        pauses = Backoff()
        highest = [max(high, pauses.next()) for high in highest]
    for high, ceiling in zip(highest, [0.5, 1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert ceiling * 0.9 < high <= ceiling
    pauses = Backoff()
    for _ in range(9):
        pauses.next()
    pauses.reset()
    assert pauses.next() <= 0.5


def test_two_never_keep_step() -> None:
    one, two = Backoff(), Backoff()
    assert [one.next() for _ in range(5)] != [two.next() for _ in range(5)]
