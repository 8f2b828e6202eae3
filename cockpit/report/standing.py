"""A calibrated server's figures as lines, for every face alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cockpit.report import numbers


def lines(found: Mapping[str, Any]) -> list[str]:
    """Each measured rate of a summary's or a side's `calibration`, with its share of the class where it is known."""
    out = [_line(figure) for figure in found["figures"]]
    if found["spread"] is not None and not found["slow"]:
        out.append(f"all {found['devices']} devices within {numbers.relative(found['spread'])} of each other")
    return out


def slow(found: Mapping[str, Any]) -> list[str]:
    """The devices that are slow, each with what in and by how much."""
    out = []
    for one in found["slow"]:
        below = f"{numbers.relative(one['below'])} below the median"
        out.append(f"slow: {one['text']}, {one['what']} {numbers.plain(one['value'])}, {below}")
    return out


def _line(figure: Mapping[str, Any]) -> str:
    text = f"{figure['what']} {numbers.plain(figure['value'])} {figure['unit']}"
    shares = []
    if figure["of_measured"] is not None:
        shares.append(f"{_share(figure['of_measured'])} of {numbers.plain(figure['measured'])} measured elsewhere")
    if figure["of_spec"] is not None:
        shares.append(f"{_share(figure['of_spec'])} of the data sheet's {numbers.plain(figure['spec'])}")
    return f"{text}: {', '.join(shares)}" if shares else text


def _share(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"
