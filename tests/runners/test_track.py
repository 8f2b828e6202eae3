"""Trackers: what fails in one is said without what is secret, and ends no training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from runners import wire
from runners.listeners import Listener
from runners.track import Guarded


class _Fails(Listener):
    calls = 0

    def started(self, facts: Mapping[str, Any]) -> None:
        self.calls += 1
        raise ConnectionError("API request to https://me:word@tracker.example/api failed\nsecond line")


def test_a_tracker_that_fails_is_told_no_more_and_its_login_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    fails = _Fails()
    guarded = Guarded(fails)
    guarded.started({})
    guarded.started({})
    assert fails.calls == 1
    (line,) = capsys.readouterr().out.splitlines()
    told = wire.parse(line.encode())
    assert told is not None
    assert told["message"] == (
        "_Fails is told no more of this training: API request to https://tracker.example/api failed"
    )
