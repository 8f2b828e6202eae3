"""What the child process of a source tells the agent: frames of whole lines on a pipe that blocks neither.

`O <name>` a source is about to be opened; `H <json>` what the hello line says of GPUs, and `hz`, the rate that the
source is read at; `E <json>` an err line; `T <t_mono_ns> <t_wall_ns> <late> <n>` and n lines `<index> <json of that
device>`; `B` there is nothing to tell, and the process is well.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple, Union

MOST_BY = 4 << 20  # a frame without end must not fill the agent's memory
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
WELL_S = 60.0  # a source that worked for so long has its back-off anew
STUCK = 75  # the child's exit code where a thread does not come back from its driver
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class FrameError(Exception):
    """What came is no frame: the child is not to be understood any more."""


class Opening(NamedTuple):
    """The source `name` is about to be opened, which may end the process."""

    name: str


class Hello(NamedTuple):
    """backend, vendor, sources, devices, hz."""

    about: Dict[str, Any]


class Err(NamedTuple):
    """An err line."""

    line: Dict[str, Any]


class Tick(NamedTuple):
    """One reading: the JSON of each device by its index; `late` grid points before it were passed over."""

    t_mono_ns: int
    t_wall_ns: int
    late: int
    devices: Dict[int, bytes]


class Beat(NamedTuple):
    """The child lives, and has no source that could tell anything now."""


Frame = Union[Opening, Hello, Err, Tick, Beat]
BEAT = b"B\n"


def encode(value: Any) -> bytes:
    """JSON in one line; a number that JSON does not have becomes null."""
    try:
        return _encoder.encode(value).encode()
    except ValueError:
        return _encoder.encode(_finite(value)).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def opening(name: str) -> bytes:
    """An O frame."""
    return b"O %s\n" % name.encode()


def hello(about: Dict[str, Any]) -> bytes:
    """An H frame."""
    return b"H %s\n" % encode(about)


def err(line: Dict[str, Any]) -> bytes:
    """An E frame."""
    return b"E %s\n" % encode(line)


def tick(t_mono_ns: int, t_wall_ns: int, late: int, readings: Dict[int, Dict[str, Any]]) -> bytes:
    """A T frame; each reading begins with its `index`."""
    lines = [b"T %d %d %d %d\n" % (t_mono_ns, t_wall_ns, late, len(readings))]
    lines.extend(b"%d %s\n" % (index, encode(reading)) for index, reading in readings.items())
    return b"".join(lines)


class Reader:
    """Frames out of the bytes of a pipe, however they are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises FrameError."""
        lines = ((self._rest + data) if self._rest else data).split(b"\n")
        at, whole = 0, len(lines) - 1
        while at < whole:
            head = lines[at]
            try:
                if head[:2] != b"T ":
                    yield _small(head)
                    at += 1
                    continue
                mono, wall, late, count = _stamps(head)
                if at + count >= whole:
                    break
                yield Tick(mono, wall, late, _devices(lines[at + 1 : at + 1 + count]))
            except (ValueError, TypeError) as error:
                raise FrameError("%r is no frame" % head[:80]) from error
            at += 1 + count
        self._rest = b"\n".join(lines[at:])
        if len(self._rest) > MOST_BY:
            raise FrameError("a frame is longer than %d bytes" % MOST_BY)


def _stamps(head: bytes) -> Tuple[int, int, int, int]:
    """Both times, how many grid points were passed over, how many devices follow."""
    mono, wall, late, count = map(int, head[2:].split(b" "))
    if late < 0 or count < 0:
        raise ValueError(head)
    return mono, wall, late, count


def _devices(lines: List[bytes]) -> Dict[int, bytes]:
    found = {}
    for line in lines:
        index, _, body = line.partition(b" ")
        found[int(index)] = body
    return found


def _small(head: bytes) -> Frame:
    """A frame of one line."""
    kind, _, body = head.partition(b" ")
    if kind == b"B":
        return Beat()
    if kind == b"O":
        return Opening(body.decode())
    if kind in (b"H", b"E"):
        obj = json.loads(body)
        if isinstance(obj, dict):
            return Hello(_checked(obj)) if kind == b"H" else Err(obj)
    raise ValueError(head)


def _checked(about: Dict[str, Any]) -> Dict[str, Any]:
    """What the agent relies on; else ValueError."""
    hz, devices = about.get("hz"), about.get("devices")
    if isinstance(hz, bool) or not isinstance(hz, (int, float)) or not 0 < hz < 1e6 or not isinstance(devices, list):
        raise ValueError(about)
    if not all(isinstance(device, dict) and isinstance(device.get("index"), int) for device in devices):
        raise ValueError(about)
    return about


class Writer:
    """Writes whole frames to a pipe that never makes the writer wait. `dropped` counts those that did not fit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.dropped = 0
        self._rest = b""
        os.set_blocking(fd, False)

    def write(self, frame: bytes) -> bool:
        """Write one frame; False where there is no room, and nothing of it was written.

        Raises BrokenPipeError where nobody reads any more.
        """
        if self._rest and not self._flush():
            self.dropped += 1
            return False
        self._rest = frame
        if not self._flush() and len(self._rest) == len(frame):
            self._rest = b""
            self.dropped += 1
            return False
        return True

    def _flush(self) -> bool:
        """Write what is left of a frame that was begun; whether nothing is left."""
        while self._rest:
            try:
                self._rest = self._rest[os.write(self.fd, self._rest) :]
            except BlockingIOError:
                return False
        return True


def err_line(source: str, code: str, text: str, **more: Any) -> Dict[str, Any]:
    """An err line of now."""
    stamps = {"t_mono_ns": time.monotonic_ns(), "t_wall_ns": time.time_ns()}
    return {"type": "err", **stamps, "source": source, "code": code, "text": text[:1000], **more}


class Grid:
    """The moments t0 + k / hz of CLOCK_MONOTONIC, by their number k."""

    def __init__(self, hz: float, t0_ns: int) -> None:
        self.period_ns = int(1e9 / hz)
        self.t0_ns = t0_ns

    def now(self) -> int:
        """The number of the moment that was last due."""
        return self.of(time.monotonic_ns())

    def of(self, t_mono_ns: int) -> int:
        """The same at another time."""
        return (t_mono_ns - self.t0_ns) // self.period_ns

    def at_s(self, k: int) -> float:
        """When k is due, in seconds."""
        return (self.t0_ns + k * self.period_ns) / 1e9

    def wait(self, k: int) -> None:
        """Sleep until k is due."""
        due = self.at_s(k)
        while True:
            left = due - time.monotonic()
            if left <= 0:
                return
            time.sleep(left)
