"""Which source is read: the first that opens, again after it is gone, and then the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.agent.gpu import choose, frames, sense
from runners.agent.gpu.choose import Maker
from runners.agent.gpu.source import Gone, Reading, Source, SourceError
from tests.agent.players import Well


class Enough(BaseException):
    """Ends a loop that has no end."""


class Lost(Well):
    """Opens, and is gone at the third reading."""

    def open(self) -> None:
        super().open()
        self.name, self.left = "lost", 2

    def hot(self) -> list[Reading]:
        self.left -= 1
        if self.left < 0:
            raise Gone("failed", "GPU is lost")
        return super().hot()


class Last(Lost):
    """The test is over with its third reading."""

    def hot(self) -> list[Reading]:
        try:
            return super().hot()
        except Gone:
            raise Enough from None


class Shut(Well):
    def open(self) -> None:
        raise SourceError("no_permission", "it is shut", "add the user to the group render")


class Empty(Well):
    count = 0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def _told(pipe: tuple[int, int], *kinds: type[Source], without: tuple[str, ...] = ()) -> list[frames.Frame]:
    makers = [Maker(kind.__name__, kind) for kind in kinds]
    sensing = sense.Sense(makers, "nvidia", frames.Writer(pipe[1]))
    sensing.leave_out(without)
    with pytest.raises(Enough):
        sensing.work(100.0, 0)
    return list(frames.Reader().feed(os.read(pipe[0], 1 << 20)))


def test_a_source_that_is_gone_for_good_gives_way_to_the_next(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sense, "BACK_OFF_S", (0.01, 0.01))
    found = _told(pipe, Shut, Empty, Lost, Last)
    opened = [frame.name for frame in found if isinstance(frame, frames.Opening)]
    assert opened == ["Shut", "Empty", "Lost", "Lost", "Lost", "Last"]
    hellos = [frame.about for frame in found if isinstance(frame, frames.Hello)]
    fates = {fate["name"]: (fate["ok"], fate["code"], fate["text"]) for fate in hellos[-1]["sources"]}
    assert fates == {
        "Shut": (False, "no_permission", "it is shut (add the user to the group render)"),
        "Empty": (False, "not_found", "it shows no GPU"),
        "Lost": (True, None, None),
        "Last": (True, None, None),
    }
    assert any(isinstance(frame, frames.Err) and frame.line["code"] == "gone" for frame in found)


def test_one_that_was_left_out_is_not_opened(pipe: tuple[int, int]) -> None:
    found = _told(pipe, Lost, Last, without=("Lost",))
    assert [frame.name for frame in found if isinstance(frame, frames.Opening)] == ["Last"]
    hello = next(frame.about for frame in found if isinstance(frame, frames.Hello))
    assert [(fate["name"], fate["ok"]) for fate in hello["sources"]] == [("Lost", False), ("Last", True)]


@pytest.mark.parametrize(
    ("made", "vendor"), [("nvidiactl", "nvidia"), ("kfd", "amd"), ("null", "cpu")], ids=["nvidia", "amd", "cpu"]
)
def test_the_vendor_is_that_of_the_driver_that_is_loaded(tmp_path: Path, made: str, vendor: str) -> None:
    (tmp_path / made).touch()
    assert choose.vendor_of(dev=str(tmp_path), proc=str(tmp_path / "none")) == vendor


def test_a_tree_of_sysfs_tells_of_amd(tmp_path: Path) -> None:
    assert choose.vendor_of(str(tmp_path)) == "cpu"
    for card, number in (("card0", "0x1a03"), ("card1", "0x1002")):
        folder = tmp_path / "class" / "drm" / card / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(number + "\n")
    assert choose.vendor_of(str(tmp_path)) == "amd"


@pytest.mark.parametrize(("text", "found"), [("0-3", (0, 1, 2, 3)), ("2", (2,)), ("0,2-3,2", (0, 2, 3))])
def test_gpus_are_read_as_people_write_them(text: str, found: tuple[int, ...]) -> None:
    assert choose.numbers(text) == found


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1"])
def test_what_is_no_list_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        choose.numbers(text)
