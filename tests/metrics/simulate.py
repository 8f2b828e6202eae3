"""How often does a verdict's interval hold what it promises? Run: `python -m tests.metrics.simulate [--write]`.

A draw is one comparison: n runs a side, each with a throughput of its own (the spread between runs) and iterations
that hang together (an AR(1) series). The runs go through the product's own warm-up rule and mean, and each candidate
makes its interval of the ratio of the sides. `--write` puts the tables between the marks of
docs/benchmarks-statistics.md.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.special import stdtrit

from cockpit.metrics import interval, steady

Floats = npt.NDArray[np.float64]
Method = Callable[[Floats, Floats], tuple[Floats, Floats]]

DRAWS = 10_000
ITERATIONS = 120  # as in the demo duel
STEP_CV = 0.02  # spread of single steps
TOKENS = 1024.0
STEP_S = 0.25
WITHIN = 0.01
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-statistics.md"
BEGIN, END = "<!-- simulation: begin -->", "<!-- simulation: end -->"


@dataclass(frozen=True)
class Cell:
    """One situation: runs a side, spread between runs a side (ratio), true ratio, correlation of steps, tails."""

    runs: tuple[int, int]
    cv: tuple[float, float]
    ratio: float = 1.0
    phi: float = 0.4
    heavy: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        cv = " / ".join(f"{100 * c:g} %" for c in dict.fromkeys(self.cv))
        tail = ", heavy tails" if self.heavy else ""
        return f"{self.runs[0]} + {self.runs[1]} | {cv} | {self.ratio:g} | {self.phi:g}{tail}"


def step_times(cell: Cell, side: int, draws: int, rng: np.random.Generator) -> Floats:
    """Step times (seconds) of `draws` x runs x iterations: a run's own level times correlated noise.

    Heavy tails take the run levels from Student's t with 5 degrees of freedom, at the same spread.
    """
    runs, cv = cell.runs[side], cell.cv[side]
    shape = (draws, runs)
    level = rng.standard_t(5, shape) / math.sqrt(5 / 3) if cell.heavy else rng.standard_normal(shape)
    speed = np.exp(cv * level) * (cell.ratio if side else 1.0)
    white = rng.standard_normal((draws, runs, ITERATIONS))
    white[..., 0] /= math.sqrt(1 - cell.phi**2)  # so that the series is stationary from its first step
    noise = lfilter([1.0], [1.0, -cell.phi], white, axis=-1) * math.sqrt(1 - cell.phi**2)
    return np.asarray(STEP_S / speed[..., None] * np.exp(STEP_CV * noise), dtype=np.float64)


def throughput(step_s: Floats) -> Floats:
    """tokens_per_s of every run (last axis: iterations), as `summarise` has it: all tokens over all steady time."""
    rows = step_s.reshape(-1, step_s.shape[-1])
    dropped = steady.mser5_rows(rows)
    kept = np.arange(rows.shape[1]) >= dropped[:, None]
    return np.asarray(TOKENS * kept.sum(axis=1) / (rows * kept).sum(axis=1)).reshape(step_s.shape[:-1])


def logs(cell: Cell, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Logarithms of the run throughputs of both sides: (draws x runs) each."""
    parts: tuple[list[Floats], list[Floats]] = ([], [])
    for start in range(0, draws, 2000):
        for side in (0, 1):
            block = step_times(cell, side, min(2000, draws - start), rng)
            parts[side].append(np.log(throughput(block)))
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def chosen(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The product's own."""
    return interval.between_runs(a, b)[1:]


def _t_interval(a: Floats, b: Floats, error: Floats, df: npt.ArrayLike) -> tuple[Floats, Floats]:
    half = stdtrit(df, 0.975) * np.sqrt(error)
    middle = b.mean(axis=-1) - a.mean(axis=-1)
    return middle - half, middle + half


def _errors(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    return a.var(axis=-1, ddof=1) / a.shape[-1], b.var(axis=-1, ddof=1) / b.shape[-1]


def pooled(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Student's t with one variance for both sides."""
    n, m = a.shape[-1], b.shape[-1]
    both = (a.var(axis=-1, ddof=1) * (n - 1) + b.var(axis=-1, ddof=1) * (m - 1)) / (n + m - 2)
    return _t_interval(a, b, both * (1 / n + 1 / m), n + m - 2)


def welch(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Welch's t with Satterthwaite's degrees of freedom."""
    error_a, error_b = _errors(a, b)
    df = (error_a + error_b) ** 2 / (error_a**2 / (a.shape[-1] - 1) + error_b**2 / (b.shape[-1] - 1))
    return _t_interval(a, b, error_a + error_b, df)


def cochran(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Cochran and Cox: the sides' own critical values, weighted by their errors."""
    error_a, error_b = _errors(a, b)
    own = error_a * stdtrit(a.shape[-1] - 1, 0.975) + error_b * stdtrit(b.shape[-1] - 1, 0.975)
    half = own / np.sqrt(error_a + error_b)
    middle = b.mean(axis=-1) - a.mean(axis=-1)
    return middle - half, middle + half


def pretest(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Pooled unless the variances differ by more than a factor of 10, then Welch."""
    error_a, error_b = _errors(a, b)
    far = np.maximum(error_a, error_b) > 10 * np.minimum(error_a, error_b)
    (low_p, high_p), (low_w, high_w) = pooled(a, b), welch(a, b)
    return np.where(far, low_w, low_p), np.where(far, high_w, high_p)


def bootstrap(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Percentile bootstrap of the difference of means, 499 resamples a draw."""
    rng = np.random.default_rng(7)
    resampled = []
    for side in (a, b):
        pick = rng.integers(0, side.shape[-1], (side.shape[0], 499, side.shape[-1]))
        resampled.append(np.take_along_axis(side[:, None, :], pick, axis=-1).mean(axis=-1))
    low, high = np.percentile(resampled[1] - resampled[0], [2.5, 97.5], axis=-1)
    return low, high


METHODS: dict[str, Method] = {
    "chosen": chosen,
    "Welch": welch,
    "Cochran-Cox": cochran,
    "pooled t": pooled,
    "pretest": pretest,
}


@dataclass(frozen=True)
class Rates:
    """Shares of draws: the interval holds the true ratio, excludes 1, lies within 1 %; its median half-width."""

    covers: float
    better: float
    equivalent: float
    half_width: float


def rates(bounds: tuple[Floats, Floats], ratio: float) -> Rates:
    """Count what intervals of the log ratio say where the truth is `ratio`."""
    low, high = bounds
    truth = math.log(ratio)
    excludes = (low > 0) | (high < 0)
    inside = (low >= math.log1p(-WITHIN)) & (high <= math.log1p(WITHIN)) & ~excludes
    covers = (low <= truth) & (truth <= high)
    width = float(np.median(high - low) / 2)
    return Rates(float(covers.mean()), float(excludes.mean()), float(inside.mean()), width)


def error(rate: float, draws: int) -> float:
    """Binomial standard error of a rate."""
    return math.sqrt(max(rate * (1 - rate), 1e-12) / draws)


CVS = (0.0015, 0.005, 0.014)
SIZES = (3, 5, 10)
EQUAL = [Cell((n, n), (cv, cv)) for n in SIZES for cv in CVS]
MORE = [
    *(Cell((n, n), (0.005, 0.005), phi=phi) for n in SIZES for phi in (0.3, 0.5)),
    *(Cell((n, n), (0.0015, 0.014)) for n in SIZES),
    *(Cell((n, n), (0.005, 0.014)) for n in SIZES),
    *(Cell(n, cv) for n in ((3, 5), (3, 10), (5, 10)) for cv in ((0.005, 0.005), (0.014, 0.0015), (0.0015, 0.014))),
    *(Cell((n, n), (0.005, 0.005), heavy=True) for n in SIZES),
]
UNEQUAL = [Cell((n, n), (cv, cv), ratio=1.01) for n in SIZES for cv in CVS]


def seeded(cell: Cell) -> np.random.Generator:
    """A generator of the cell's own, so that a table does not depend on which cells came before."""
    key = [*cell.runs, *(round(c * 1e6) for c in cell.cv), round(cell.ratio * 1e4), round(cell.phi * 100), cell.heavy]
    return np.random.default_rng(key)


def _row(cell: Cell, draws: int) -> tuple[str, Rates]:
    a, b = logs(cell, draws, seeded(cell))
    found = {name: rates(method(a, b), cell.ratio) for name, method in METHODS.items()}
    few = min(draws, 2000)
    found["bootstrap"] = rates(bootstrap(a[:few], b[:few]), cell.ratio)
    ours = found["chosen"]
    cells = [
        f"{100 * r.covers:.2f} ± {100 * error(r.covers, few if name == 'bootstrap' else draws):.2f}"
        for name, r in found.items()
    ]
    said = f"{100 * ours.better:.2f} ± {100 * error(ours.better, draws):.2f}"
    said += f" | {100 * ours.equivalent:.1f} | {100 * ours.half_width:.2f}"
    return f"| {cell.name} | {' | '.join(cells)} | {said} |", ours


def table(cells: list[Cell], draws: int) -> list[str]:
    """A markdown table of the cells: coverage by method, then what the chosen one says; all in percent."""
    head = "| runs | spread between runs | true ratio | step correlation | chosen | Welch | Cochran-Cox | "
    head += "pooled t | pretest | bootstrap | a side better | equivalent | half-width |"
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for cell in cells:
        lines.append(_row(cell, draws)[0])
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Run all cells and print, or write, the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    began = time.process_time()
    parts = []
    for title, cells in (
        ("Equal sides: coverage, and false verdicts under `a side better`", EQUAL),
        ("Equal sides under harder conditions", MORE),
        ("The second side is 1 % faster: coverage, and how often that is found", UNEQUAL),
    ):
        parts += [f"### {title}", "", *table(cells, args.draws), ""]
    used = time.process_time() - began
    parts.append(f"{args.draws} draws a cell (bootstrap {min(args.draws, 2000)}), {used:.0f} s of CPU time.")
    if args.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{chr(10).join(parts)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
