"""The page's table of AMD's captures is what the captures give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.coverage import PAGE, in_page, section

REAL = os.environ.get("EKVI_REAL_DATA", "")


@pytest.mark.skipif(not REAL, reason="EKVI_REAL_DATA names no folder of real captures")
def test_the_pages_table_is_what_the_captures_give() -> None:
    made = section("amd", Path(REAL))
    assert in_page(PAGE.read_text(), "amd") == made, "run python -m tests.fakes.coverage --write"
