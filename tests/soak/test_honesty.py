"""The long check of the verdict against real runs of one machine with itself."""

from __future__ import annotations

import pytest

from tests.soak.honesty import one_duel, primary

pytestmark = [pytest.mark.soak, pytest.mark.train, pytest.mark.timeout(7200)]


def test_of_20_duels_with_itself_at_most_3_call_a_side_better(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("honesty")
    monkeypatch.setenv("EKVI_RUNS_DIR", str(folder / "runs"))
    monkeypatch.setenv("EKVI_WORKDIR", str(folder / "work"))
    verdicts = [str(primary(one_duel())["verdict"]) for _ in range(20)]
    assert sum(v.endswith("_better") for v in verdicts) <= 3, verdicts
