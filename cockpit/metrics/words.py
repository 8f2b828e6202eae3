"""The sentences of a verdict. Numbers go in as ratios against the first side; percent come out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Judged:
    """A metric that is judged. `higher` says which way is better; `more` and `less` complete "right is 2 % ..."."""

    name: str
    unit: str
    higher: bool
    more: str
    less: str


JUDGED: tuple[Judged, ...] = (
    Judged("tokens_per_s_gpu", "token/s/GPU", True, "faster", "slower"),
    Judged("tokens_per_s", "token/s", True, "faster", "slower"),
    Judged("tflops_gpu", "TFLOP/s/GPU", True, "higher in TFLOP/s a GPU", "lower in TFLOP/s a GPU"),
    Judged("mfu", "1", True, "higher in MFU", "lower in MFU"),
    Judged("mfu_measured", "1", True, "higher in measured MFU", "lower in measured MFU"),
    Judged("step_s", "s", False, "slower in its median step", "faster in its median step"),
    Judged("step_s_p99", "s", False, "slower in its slowest 1 % of steps", "faster in its slowest 1 % of steps"),
    Judged("energy_per_token_j", "J/token", False, "higher in energy a token", "lower in energy a token"),
    Judged("energy_j", "J", False, "higher in energy of the whole run", "lower in energy of the whole run"),
    Judged("power_w", "W", False, "higher in power", "lower in power"),
    Judged("mem_peak_by", "By", False, "higher in peak GPU memory", "lower in peak GPU memory"),
    Judged("tokens_per_usd", "token/USD", True, "higher in tokens a dollar", "lower in tokens a dollar"),
    Judged("time_to_target_min", "min", False, "slower to the target", "faster to the target"),
)
PRIMARY = ("tokens_per_s_gpu", "tokens_per_s", "step_s")  # the first that every side knows carries the verdict


def percent(ratio: float, *, signed: bool = False, fine: bool = False) -> str:
    """A ratio's distance from 1, e.g. `0.4 %` or, signed, `+0.4 %`; `fine` keeps two decimals."""
    value = (ratio - 1) * 100
    size = abs(value)
    digits = 3 if size < 0.01 else 2 if fine or size < 0.1 else 1 if size < 20 else 0
    text = f"{value:+.{digits}f}" if signed else f"{size:.{digits}f}"
    return f"{text} %"


def bound(within: float) -> str:
    """What counts as the same, `1 %`."""
    return f"{100 * within:g} %"


def interval(ci: tuple[float, float]) -> str:
    """`the 95 % interval from -0.8 % to +1.6 %`."""
    fine = min(abs(ci[0] - 1), abs(ci[1] - 1)) < 0.001
    low, high = (percent(x, signed=True, fine=fine) for x in ci)
    return f"the 95 % interval from {low} to {high}"


def effect(metric: Judged, side: str, ratio: float) -> str:
    """`right is 0.4 % faster`; an effect that is exactly none says so."""
    if ratio == 1:
        return f"{side} shows no difference"
    return f"{side} is {percent(ratio)} {metric.more if ratio > 1 else metric.less}"


def runs(counts: tuple[int, int]) -> str:
    """`over 3 runs a side`, or `over 3 and 5 runs`."""
    if counts[0] == counts[1]:
        return f"over {counts[0]} run{'s' * (counts[0] != 1)} a side"
    return f"over {counts[0]} and {counts[1]} runs"
