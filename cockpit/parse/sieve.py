"""Which of many needles a large block cannot hold, in one look at it instead of one for each needle.

Three bytes of each needle stand for it. A table for each of the three places maps a byte to the groups of needles
that have it there; where all three places agree on a group, one of its needles may begin. Nothing that is there is
ever missed; what is not there may be looked for in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST_BY = 1 << 17  # below it the look costs more than it spares, and numpy need not be loaded
_PLACES = 3
_GROUPS = 8  # the bits of a byte
_COMMON = frozenset(b" etaoinsrhldcumfpgwyb0123456789.,=")  # tell little: most lines are full of them


class Sieve:
    """A sieve for these needles, none shorter than three bytes."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        tables = [bytearray(256) for _ in range(_PLACES)]
        self._groups: list[int] = []
        firsts: dict[int, int] = {}
        for needle in needles:
            rare = _rarest(needle)
            group = 1 << firsts.setdefault(rare[0], len(firsts) % _GROUPS)
            self._groups.append(group)
            for table, byte in zip(tables, rare, strict=True):
                table[byte] |= group
        self._tables = [bytes(table) for table in tables]

    def possible(self, block: bytes) -> list[bool]:
        """For each needle whether `block` may hold it."""
        import numpy as np

        planes = [np.frombuffer(block.translate(table), np.uint8) for table in self._tables]
        length = len(block) - _PLACES + 1
        seen = planes[0][:length] & planes[1][1 : 1 + length] & planes[2][2 : 2 + length]
        there = int(np.bitwise_or.reduce(seen))
        return [bool(there & group) for group in self._groups]


def _rarest(needle: bytes) -> bytes:
    """The three bytes in a row of a needle that are the least likely in any text."""
    starts = range(len(needle) - _PLACES + 1)
    return max((needle[i : i + _PLACES] for i in starts), key=lambda part: sum(b not in _COMMON for b in part))
