"""A shared library that answers as a test says, for any program that loads it by its name.

    path = build(folder, "libnvidia-ml.so.1", ["nvmlInitWithFlags", ...], default_status=3)   # once a session
    program = Program(tmp_path, path)
    program.on("nvmlInitWithFlags")                                       # returns 0
    program.on("nvmlDeviceGetName", {0: HANDLE}, out={1: b"NVIDIA H200\\0"})
    subprocess.run(..., env={**os.environ, **program.env})

A program may be changed while the processes that loaded the library go on: their next call sees it. Where several
rules fit a call, the one set last is taken; a rule set again for the same calls replaces the one before. What no rule
fits returns `default_status`.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_name("library.c")
_GCC_S = 60
_PAGE_BYTES = 8192 * 8
_FIRST_SLOT = 1024  # words of the page: the version, a counter a symbol, from here on a counter a rule

Payload = bytes | Sequence[bytes]


class At(NamedTuple):
    """A number of `size` bytes at `offset` behind the pointer that argument `arg` is: a key of `where`."""

    arg: int
    offset: int
    size: int = 8


Where = Mapping[int, int] | Mapping[At, int] | Mapping[int | At, int]


@dataclass(frozen=True)
class Each:
    """Fill every item of an array that the caller made, by the 32-bit key that the caller wrote into it.

    The array begins `offset` bytes behind argument `arg`; its number of items is argument `count`, or what stands at
    `count`. `values` (key, or None for any other) are written at byte `at` of an item.
    """

    arg: int
    stride: int
    count: int | At
    values: Mapping[int | None, Payload]
    offset: int = 0
    key_offset: int = 0
    at: int = 0


def build(folder: Path, soname: str, symbols: Iterable[str], default_status: int) -> Path:
    """Compile the library into `folder` and return its path. A symbol that is not in `symbols` is absent, as in an
    older driver. Needs gcc; raises CalledProcessError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(set(symbols))
    assert 0 < len(names) < _FIRST_SLOT - 1
    head = f'#define SYMBOLS {len(names)}\n#define SONAME "{soname}"\n#define DEFAULT {default_status}ull\n'
    source = folder / f"{soname}.c"
    source.write_text(head + _SOURCE.read_text() + "".join(f"F({name}, {i})\n" for i, name in enumerate(names)))
    path = folder / soname
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", "-o", path, source, "-lpthread"],
        check=True, timeout=_GCC_S,
    )  # fmt: skip
    (folder / f"{soname}.symbols").write_text(json.dumps(names))
    return path


class Program:
    """What one built library answers to the processes that are started with `env`."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.library = library
        self.symbols: dict[str, int] = {
            name: i for i, name in enumerate(json.loads(Path(f"{library}.symbols").read_text()))
        }
        self.env = {"LD_LIBRARY_PATH": str(library.parent), "EKVI_FAKES": str(folder)}
        self._file = folder / f"{library.name}.program"
        self._rules: dict[str, list[str]] = {}
        self._slots: dict[str, int] = {}
        self.held = False
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{library.name}.page").open("w+b") as f:
            f.truncate(_PAGE_BYTES)
            self._page = mmap.mmap(f.fileno(), _PAGE_BYTES)
        self._publish()

    def on(
        self,
        symbol: str,
        where: Where | None = None,
        *,
        out: Mapping[int, Payload] | None = None,
        each: Each | None = None,
        status: int = 0,
        text: str | None = None,
        delay_s: float = 0.0,
        after: int = 0,
        every_s: float = 0.0,
        loop: bool = False,
        say: str = "",
        crash: bool = False,
    ) -> None:
        """Set what `symbol` does where the arguments (numbered from 0; 64 bits, or At) equal `where`.

        `out` copies bytes to what each argument points to (nowhere where that is NULL). A list of payloads, all of
        one size, is a series: the next one at each call or, with `every_s`, as time goes by from now; then the last
        stays, or with `loop` it begins anew. `delay_s` blocks first, until it is over or the rule changed. `after`
        counts calls of the symbol from now before the rule holds. `text` is returned as char * in the place of
        `status`. `say` goes to standard output, `crash` ends the process by SIGSEGV. Raises KeyError where the
        library has no such symbol.
        """
        number = self.symbols[symbol]
        conditions = sorted((_condition(key, value) for key, value in (where or {}).items()), key=str)
        name = f"{symbol} {conditions} {bool(after)}"
        slot = self._slots.setdefault(name, _FIRST_SLOT + len(self._slots))
        start = self.calls(symbol) + after if after else 0
        sig = int(signal.SIGSEGV) if crash else 0
        lines = [
            f"R {slot} {number} {status} {round(delay_s * 1e6)} {start} {round(every_s * 1e6)} {time.monotonic_ns()} "
            f"{int(loop)} {sig} {_hex(say.encode())} {_hex(text.encode()) if text is not None else '-'}"
        ]
        lines += [f"W {condition}" for condition in conditions]
        lines += [f"O {arg} {_series(payload)}" for arg, payload in (out or {}).items()]
        lines += [] if each is None else _each(each)
        self._rules.pop(name, None)
        self._rules[name] = lines
        self._set(f"slot {slot}", 8 * slot, 0)
        self._publish()

    def forget(self, symbol: str) -> None:
        """Take back all rules of `symbol`."""
        assert symbol in self.symbols
        self._rules = {name: lines for name, lines in self._rules.items() if name.split()[0] != symbol}
        self._publish()

    @contextmanager
    def together(self) -> Iterator[None]:
        """The rules set inside take effect at once, at the end."""
        self.held = True
        try:
            yield
        finally:
            self.held = False
            self._publish()

    def calls(self, symbol: str) -> int:
        """How often `symbol` was called, in all processes."""
        (count,) = struct.unpack_from("<Q", self._page, 8 * (1 + self.symbols[symbol]))
        assert isinstance(count, int)
        return count

    def _publish(self) -> None:
        """The whole file first, then its version: a reader never sees a part."""
        if self.held:
            return
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for lines in self._rules.values() for line in lines))
        new.replace(self._file)
        (version,) = struct.unpack_from("<Q", self._page, 0)
        self._set("version", 0, version + 1)

    def _set(self, what: str, at: int, value: int) -> None:
        assert at + 8 <= _PAGE_BYTES, f"no room for {what}"
        struct.pack_into("<Q", self._page, at, value)


def environment(*programs: Program) -> dict[str, str]:
    """This process's environment with the doors of all of these; they stand in one folder."""
    env = dict(os.environ)
    for program in programs:
        env.update(program.env)
    folders = dict.fromkeys(program.env["LD_LIBRARY_PATH"] for program in programs)
    return {**env, "LD_LIBRARY_PATH": ":".join(folders)}


def _condition(key: int | At, value: int) -> str:
    arg, offset, size = key if isinstance(key, At) else (key, -1, 8)
    return f"{arg} {offset} {size} {value & (2**64 - 1)}"


def _series(payload: Payload) -> str:
    frames = [payload] if isinstance(payload, bytes) else list(payload)
    assert frames
    assert all(frames), "a payload has at least one byte"
    assert len({len(frame) for frame in frames}) == 1, "the payloads of a series have one size"
    return f"{len(frames)} " + " ".join(frame.hex() for frame in frames)


def _each(each: Each) -> list[str]:
    count = each.count if isinstance(each.count, At) else At(each.count, -1)
    values = sorted(
        each.values.items(), key=lambda item: item[0] is not None
    )  # looked up from the end: any comes last
    items = f"{each.arg} {each.offset} {each.stride} {count.arg} {count.offset} {each.key_offset} {each.at}"
    return [
        f"E {items} {len(values)}",
        *(f"K {'*' if key is None else key} {_series(payload)}" for key, payload in values),
    ]


def _hex(data: bytes) -> str:
    return data.hex() or "-"
