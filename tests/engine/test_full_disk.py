"""A full disk, under the runs folder and under the server's: one clear message, and the training goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import Duel, eventually

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(180)]


class SmallDisk:
    """A file system of its own, that can be filled to the last byte and freed again."""

    def __init__(self, path: Path, kib: int) -> None:
        self.path = path
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)], check=True, timeout=20)

    def fill(self) -> None:
        """Leave not one page free."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                while True:
                    try:
                        file.write(b"x" * size)
                    except OSError:
                        break

    def free(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink()

    def close(self) -> None:
        """Take the file system away, also under a process that still has a file open there."""
        subprocess.run(["umount", "-l", str(self.path)], check=True, timeout=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 96 MiB: with less a server is refused before anything is started."""
    made = SmallDisk(tmp_path / "disk", 96 * 1024)
    yield made
    made.close()


def _first(duel: Duel) -> str:
    def held() -> str | None:
        runs = duel.group["runs"] if list((duel.runs / "groups").glob("*.json")) else []
        return next((r for r in runs if (duel.runs / r / "events.jsonl").exists() and len(duel.steps(r)) >= 3), None)

    found: str = eventually(held)
    return found


def test_a_full_runs_folder_waits_and_goes_on(duel: Duel, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    duel.runs = disk.path / "runs"
    monkeypatch.setenv("EKVI_RUNS_DIR", str(duel.runs))
    duel.write(hold=True, repeats=1)
    cockpit = duel.start("run", "--profile", "toy")
    _first(duel)
    disk.fill()
    duel.release()
    eventually(lambda: "full" in (duel.home / "err.txt").read_text())

    def all_trained() -> bool:
        ends = [p.read_text() for p in duel.work.glob("groups/*/runs/*/states.jsonl")]
        return len(ends) == 2 and all("SUCCEEDED" in text for text in ends)

    eventually(all_trained)
    assert cockpit.poll() is None, "the cockpit waits for room"
    disk.free()
    assert cockpit.wait(60) == 0, (duel.home / "err.txt").read_text()
    for run in duel.group["runs"]:
        assert duel.steps(run) == list(range(1, 21))
    assert (duel.home / "err.txt").read_text().count("the training goes on".capitalize()) == 1


def test_a_full_spool_stops_the_spool_and_not_the_training(
    duel: Duel, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    duel.work = disk.path / "work"
    monkeypatch.setenv("EKVI_WORKDIR", str(duel.work))
    duel.write(hold=True, repeats=1, steps=200, pause=0.001)  # more than what is left of the last page
    cockpit = duel.start("run", "--profile", "toy", "--output", "json")
    first = _first(duel)
    disk.fill()
    duel.release()

    def trained() -> bool:
        records = [p.read_text().replace(" ", "") for p in duel.work.glob(f"groups/*/runs/{first}/shim.*.json")]
        return any('"exit_code":0' in text for text in records)

    eventually(trained)
    disk.free()
    assert cockpit.wait(90) == 0, (duel.home / "err.txt").read_text()
    for run in duel.group["runs"]:
        steps = duel.steps(run)
        assert steps[:3] == [1, 2, 3]
        assert steps == sorted(set(steps)), "what was written is whole and stands once"
        for line in (duel.runs / run / "events.jsonl").read_text().splitlines():
            json.loads(line)
    said = [json.loads(line) for line in (duel.home / "out.txt").read_text().splitlines()]
    reasons = [e["reason"] or "" for e in said if e.get("type") == "state" and e["run"] == first]
    assert sum("no space left" in reason for reason in reasons) == 1
