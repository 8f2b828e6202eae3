"""Which fields come out of every capture of a real machine, and why the others do not: tables for docs/telemetry.md.

EKVI_REAL_DATA=... python -m tests.fakes.coverage           # print
EKVI_REAL_DATA=... python -m tests.fakes.coverage --write   # put them into the page, between their marks
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.agent.gpu.source import FIELDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
VENDORS = ("nvidia", "amd")
COUNTER = "counter"  # the value of a field of which a capture holds one of the two readings that it takes


@dataclass(frozen=True)
class Capture:
    """One GPU in one capture: `values` by field (None: unknown), `why` code and text of the None among them."""

    vendor: str
    model: str
    tool: str
    version: str
    file: str
    values: Mapping[str, object]
    why: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def captures(vendor: str, root: Path) -> list[Capture]:
    """All captures of a vendor: its module `tests.fakes.<vendor>_captures` has a function `captures(root)`."""
    found = importlib.import_module(f"tests.fakes.{vendor}_captures").captures(root)
    assert isinstance(found, list)
    return found


def section(vendor: str, root: Path) -> str:
    """What stands in the page of a vendor: its table, and what its module remarks below it."""
    remarks = getattr(importlib.import_module(f"tests.fakes.{vendor}_captures"), "remarks", lambda _: "")(root)
    return table(captures(vendor, root)) + str(remarks)


def table(found: Iterable[Capture]) -> str:
    """A row for each model, tool and version: what came out of at least one of its captures, and what of none."""
    groups: dict[tuple[str, str, str], list[Capture]] = {}
    for capture in found:
        groups.setdefault((capture.model, capture.tool, capture.version), []).append(capture)
    lines = ["| GPU | tool | version | comes out | is None, and why |", "|---|---|---|---|---|"]
    for (model, tool, version), group in sorted(groups.items()):
        told = [name for name in FIELDS if any(capture.values.get(name) is not None for capture in group)]
        codes: dict[str, list[str]] = {}
        for name in FIELDS:
            if name not in told:
                reasons = [capture.why[name][0] for capture in group if name in capture.why]
                codes.setdefault(reasons[0] if reasons else "not_told", []).append(name)
        missing = "; ".join(f"{code}: {', '.join(names)}" for code, names in sorted(codes.items()))
        lines.append(f"| {model} | {tool} | {version} | {', '.join(told)} | {missing} |")
    return "\n".join(lines) + "\n"


def marks(vendor: str) -> tuple[str, str]:
    """The lines between which a vendor's table stands in the page."""
    return f"<!-- {vendor}: made by python -m tests.fakes.coverage -->\n", f"<!-- end of {vendor} -->"


def in_page(page: str, vendor: str) -> str:
    """The table that the page holds. Raises ValueError where its marks are missing."""
    begin, end = marks(vendor)
    return page[page.index(begin) + len(begin) : page.index(end)]


def replaced(page: str, vendor: str, new: str) -> str:
    """The page with another table. Raises ValueError where its marks are missing."""
    begin, end = marks(vendor)
    at = page.index(begin) + len(begin)
    return page[:at] + new + page[page.index(end) :]


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--vendor", choices=VENDORS, action="append")
    words = parser.parse_args()
    root = os.environ.get("EKVI_REAL_DATA")
    if not root:
        print("EKVI_REAL_DATA names no folder of real captures", file=sys.stderr)
        return 2
    for vendor in words.vendor or VENDORS:
        new = section(vendor, Path(root))
        if words.write:
            PAGE.write_text(replaced(PAGE.read_text(), vendor, new))
        else:
            print(f"{vendor}\n{new}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
