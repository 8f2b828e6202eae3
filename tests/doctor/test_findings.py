"""What is made of findings."""

from __future__ import annotations

from typing import Any

import pytest

from cockpit.core.records import ServerSpec
from cockpit.engine.checks_gpus import _others
from cockpit.engine.findings import Examined, fail, ok
from cockpit.hosts.probe import Tenant


def test_a_refusal_says_the_first_failure_and_how_to_see_the_others() -> None:
    found = Examined([ok("login", "x"), fail("a", "one.", "Mend it."), fail("b", "two.")])
    refused = found.refusal("s", "my-duel")
    assert refused is not None
    assert str(refused) == "server s: one. Mend it. (1 more: see `ekvi-cockpit doctor --profile my-duel`.)"
    assert Examined([ok("login", "x")]).refusal("s", "my-duel") is None


def _tenant(gpu: int | None) -> Tenant:
    values: dict[str, Any] = {"pid": 1, "gpu": gpu, "name": "train", "memory_by": None, "user": None}
    return Tenant(**values)


@pytest.mark.parametrize(
    ("busy", "count", "said"),
    [
        ([0, 2], 4, "take others (servers.s.gpus=1,3), "),
        ([0], 1, ""),
        ([0], None, "take others (servers.s.gpus), "),
        ([None], 4, "take others (servers.s.gpus), "),
    ],
)
def test_the_gpus_to_take_instead_are_those_that_are_free(
    busy: list[int | None], count: int | None, said: str
) -> None:
    assert _others(ServerSpec(name="s", gpus=(0, 1, 2, 3)), [_tenant(g) for g in busy], count) == said
