"""A comparison of sides: `ekvi.compare/1`. The run is the unit, the machine a level above it: `scope` says which."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.core.errors import UsageError
from cockpit.core.text import printable
from cockpit.metrics import interval, steady, words
from cockpit.metrics.hardware import NEIGHBOURS, energy_apart, energy_notes
from cockpit.metrics.loss import loss_parity
from cockpit.metrics.parity import parity
from cockpit.metrics.sides import RunFacts, Side, check_sides
from cockpit.metrics.specs import published
from cockpit.metrics.standing import standing
from cockpit.metrics.verdict import MIN_RUNS, PairVerdict, judge
from cockpit.metrics.words import Judged

__all__ = ["RunFacts", "Side", "compare"]

SCHEMA = "ekvi.compare/1"
WITHIN = 0.01


_REASONS = 3  # of runs that did not succeed are said, at the most
_AGAIN = re.compile(r"\.try\d+$")  # how `run --resume` names a run that takes another's place


def compare(sides: Sequence[Side], within: float = WITHIN, *, strict: bool = False) -> dict[str, Any]:
    """Compare `sides`, ratios against the first; one side alone gets its values and no ratios.

    `within` is the ratio that counts as the same, 0.01 for 1 %. `strict` turns blocking differences into a parity
    verdict of refused (the figures stay; the caller raises ComparisonRefused). Runs that did not succeed are not
    counted. Raises UsageError on a run that stands on two sides, and on a `within` outside 0..1.
    """
    if not (math.isfinite(within) and 0 < within < 1):
        raise UsageError(f"within {within!r} is no ratio between 0 and 1.", hint="1 % is written 1% or 0.01.")
    check_sides(sides)
    fairness = parity(sides, strict=strict)
    metrics = [m for judged in words.JUDGED if (m := _metric(judged, sides, within)) is not None]
    primary = _primary(metrics, sides)
    for metric in metrics:
        metric["primary"] = metric["name"] == primary
    losses = loss_parity(sides)
    return {
        "schema": SCHEMA,
        "scope": _scope(sides, fairness),
        "sides": [_side(s) for s in sides],
        "within": within,
        "method": _method(sides),
        "primary": primary,
        "headline": _headline(sides, metrics, primary, fairness, losses["verdict"]),
        "parity": fairness,
        "metrics": metrics,
        "loss_parity": losses,
        "published": _published(sides),
        "notes": _notes(sides, metrics),
    }


def _side(side: Side) -> dict[str, Any]:
    facts = side.counted or list(side.runs)
    gpus = {_gpu(r) for r in facts}
    vendors = {str(v) for r in facts if (v := r.summary.get("vendor") or r.meta.get("vendor"))}
    return {
        "name": side.name,
        "runs": [r.id for r in side.counted],
        "left_out": [{"run": r.id, "state": r.state} for r in side.left_out],
        "vendor": " + ".join(sorted(vendors)) or None,
        "gpu": {"model": next(iter(gpus))[0], "count": next(iter(gpus))[1]} if len(gpus) == 1 else None,
        "calibration": standing(
            [r.provenance["calibrate"] for r in side.counted if isinstance(r.provenance.get("calibrate"), dict)],
            next(iter(gpus))[0] if len(gpus) == 1 else None,
        ),
    }


def _gpu(run: RunFacts) -> tuple[str | None, int | None]:
    """(model, count) of the GPUs that a run's summary names."""
    gpu = run.summary.get("gpu") or {}
    return gpu.get("model"), gpu.get("count")


def _values(side: Side, name: str) -> list[float]:
    return [v for r in side.counted if (v := r.metric(name)) is not None]


def _metric(judged: Judged, sides: Sequence[Side], within: float) -> dict[str, Any] | None:
    """One entry of `metrics`, or None where no side knows the metric."""
    values = {s.name: _values(s, judged.name) for s in sides}
    if not any(values.values()):
        return None
    out: dict[str, Any] = {
        "name": judged.name,
        "unit": judged.unit,
        "better": "higher" if judged.higher else "lower",
        "primary": False,
        "sides": {name: _shown(found) for name, found in values.items()},
        "ratio": None,
        "verdict": None,
        "why": None,
        "needs_runs": None,
    }
    if len(sides) > 1:
        out.update(_judged(judged, sides, values, within))
    return out


def _shown(values: Sequence[float]) -> dict[str, Any]:
    """A side's value: the geometric mean over its runs with its own interval."""
    import numpy as np

    if not values:
        return {"value": None, "ci95": None, "n": 0}
    if min(values) <= 0:
        return {"value": float(np.mean(values)), "ci95": None, "n": len(values)}
    logs = np.log(np.asarray(values, dtype=np.float64))
    ci = interval.mean_interval(logs)
    bounds = [math.exp(ci[0]), math.exp(ci[1])] if ci else None
    return {"value": math.exp(float(logs.mean())), "ci95": bounds, "n": len(values)}


def _judged(judged: Judged, sides: Sequence[Side], values: dict[str, list[float]], within: float) -> dict[str, Any]:
    """Ratio, verdict, why and needs_runs: of the second side, or of several against the first.

    Several sides give several chances of a false verdict, so each interval is widened by Bonferroni's rule, for as
    many of them as can be judged (`_chances`). `ratio` then is that of the side that the verdict speaks of, named by
    its `side`, and `against` has them all.
    """
    first, others = sides[0], sides[1:]
    confidence = 1 - (1 - interval.CONFIDENCE) / _chances(sides)
    pairs = {
        other.name: _explained(
            judge(
                judged,
                (first.name, values[first.name]),
                (other.name, values[other.name]),
                within=within,
                confidence=confidence,
            ),
            judged,
            (first, other),
            values,
        )
        for other in others
    }
    name, spoken = _spokesman(first.name, pairs)
    out: dict[str, Any] = {
        "ratio": _ratio(name, spoken),
        "verdict": spoken.verdict,
        "why": spoken.why,
        "needs_runs": spoken.needs_runs,
    }
    if len(others) > 1:
        out["against"] = {n: {**(_ratio(n, p) or {}), "verdict": p.verdict, "why": p.why} for n, p in pairs.items()}
    return out


def _ratio(side: str, pair: PairVerdict) -> dict[str, Any] | None:
    if pair.ratio is None:
        return None
    return {"value": pair.ratio, "ci95": list(pair.ci95) if pair.ci95 else None, "side": side}


def _explained(
    pair: PairVerdict, judged: Judged, sides: tuple[Side, Side], values: dict[str, list[float]]
) -> PairVerdict:
    """The same verdict, but where a side has no value: why, as its summaries say; none for unlike energies."""
    apart = energy_apart(judged.name, *sides)
    if apart is not None and all(values[s.name] for s in sides):
        return PairVerdict("not_comparable", apart)
    missing = next((s for s in sides if not values[s.name]), None)
    if missing is None:
        return pair
    if not missing.counted:
        return PairVerdict("insufficient_runs", f"No run of {missing.name} succeeded.", needs_runs=MIN_RUNS)
    reason = next((r for run in missing.counted if (r := run.reason(judged.name))), None)
    why = pair.why.rstrip(".") + (f": {reason}." if reason else ".")
    return PairVerdict(pair.verdict, why)


_RANK = ("insufficient_runs", "indistinguishable", "equivalent", "not_comparable")


def _spokesman(first: str, pairs: dict[str, PairVerdict]) -> tuple[str, PairVerdict]:
    """Whose verdict is the metric's: the clearest winner over the first side, else the least settled answer."""

    def size(item: tuple[str, PairVerdict]) -> float:
        return abs(math.log(item[1].ratio)) if item[1].ratio else 0.0

    won = [item for item in pairs.items() if item[1].verdict == f"{item[0]}_better"]
    if won:
        return max(won, key=size)
    if all(p.verdict == f"{first}_better" for p in pairs.values()):
        return min(pairs.items(), key=size)
    open_ones = [item for item in pairs.items() if item[1].verdict in _RANK]
    return min(open_ones, key=lambda item: (_RANK.index(item[1].verdict), -size(item)))


def _primary(metrics: Sequence[dict[str, Any]], sides: Sequence[Side]) -> str | None:
    """The figure that carries the verdict: the first of PRIMARY that every side with a run to count knows."""
    names = [s.name for s in sides if s.counted]
    for wanted in words.PRIMARY:
        found = next((m for m in metrics if m["name"] == wanted), None)
        if found is not None and names and all(found["sides"][n]["n"] for n in names):
            return wanted
    return None


def _headline(
    sides: Sequence[Side],
    metrics: Sequence[dict[str, Any]],
    primary: str | None,
    fairness: dict[str, Any],
    losses: str,
) -> str:
    """One sentence: what can be concluded from the primary figure, and whether the comparison was fair."""
    if len(sides) == 1:
        return f"{sides[0].name} alone: nothing to compare with."
    found = next((m for m in metrics if m["primary"]), None)
    if found is None or primary is None:
        return "No verdict: the sides share no measure of speed."
    if fairness["verdict"] == "refused":
        return f"Refused: {_unfair(fairness)}."
    caution = ""
    if any(d["severity"] == "blocking" for d in fairness["differences"]):
        caution = f" But {_unfair(fairness)}."
    elif losses == "differs":  # speed that was bought with another result is no speed
        caution = " But their losses part: see the loss parity."
    if len(sides) > 2:
        return _against_first(sides[0].name, found["against"]) + caution
    names = " and ".join(s.name for s in sides)
    plain = {
        "equivalent": f"{names} are equally fast.",
        "indistinguishable": f"No difference between {names} can be shown.",
        "insufficient_runs": f"Too few runs for a verdict on {names}.",
        "not_comparable": f"{names} cannot be compared.",
    }
    verdict = str(found["verdict"])
    return plain.get(verdict, f"{verdict.removesuffix('_better')} is faster.") + caution


def _unfair(fairness: dict[str, Any]) -> str:
    """What the blocking differences come to."""
    if {d["key"] for d in fairness["differences"] if d["severity"] == "blocking"} == {NEIGHBOURS}:
        return "a side shared its GPUs with another program"
    return "the sides did not do the same work"


def _against_first(first: str, against: Mapping[str, Mapping[str, Any]]) -> str:
    """What each further side's verdict is, because one side's says nothing of the others."""
    told: dict[str, list[str]] = {}
    for name, pair in against.items():
        verdict = pair["verdict"]
        told.setdefault({f"{name}_better": "won", f"{first}_better": "lost"}.get(verdict, verdict), []).append(name)
    clauses = {
        "won": "faster: {}",
        "lost": "slower: {}",
        "equivalent": "equally fast: {}",
        "indistinguishable": "no difference can be shown: {}",
        "insufficient_runs": "too few runs: {}",
        "not_comparable": "cannot be compared: {}",
    }
    parts = [text.format(", ".join(told[kind])) for kind, text in clauses.items() if kind in told]
    return f"Against {first}, {'; '.join(parts)}."


def _machines(side: Side) -> set[str] | None:
    """The machines that a side's runs ran on, or None where one is not known."""
    found = {_machine(r) for r in (side.counted or side.runs)}
    return None if None in found else {m for m in found if m}


def _machine(run: RunFacts) -> str | None:
    host = run.provenance.get("host") or {}
    known = host.get("host_id") if isinstance(host, dict) else None
    return str(known or run.provenance.get("boot_id") or "") or None


def _called(run: RunFacts) -> str | None:
    host = run.provenance.get("host") or {}
    return host.get("hostname") if isinstance(host, dict) else None


def _scope(sides: Sequence[Side], fairness: dict[str, Any]) -> str:
    """Which machines the comparison speaks of, in words."""
    machines = [_machines(s) for s in sides]
    if any(m is None for m in machines):
        return "The runs do not all record their machine: this speaks of these runs only."
    every = {m for found in machines if found for m in found}
    if len(sides) == 1:
        return f"This speaks of {'one machine' if len(every) == 1 else f'{len(every)} machines'}."
    if len(every) == 1:
        name = next((n for s in sides for r in s.runs if (n := _called(r))), None)
        where = f"this one machine{f' ({name})' if name else ''}"
        if any(not _mere_name(d["key"]) for d in fairness["differences"]):
            every_side = "Both sides" if len(sides) == 2 else "All sides"
            return f"{every_side} ran on {where}: this speaks of it and of nothing else."
        return f"An A/A comparison: every side ran on {where} with the same work, so a difference is chance or order."
    if all(len(m or ()) == 1 for m in machines) and len(every) == len(sides):
        return (
            "One machine a side: this speaks of these machines, not of their model; another of the same may differ."
        )
    return f"This speaks of {len(every)} machines, and of others only as far as these stand for them."


def _mere_name(key: str) -> bool:
    """Whether sides that differ in `key` alone still ran the same: another device or build does not, though fair."""
    return key.endswith(".name") or key == "cockpit"


def _method(sides: Sequence[Side]) -> str:
    text = "cautious Welch's t on the logarithms of the runs' values, 95 %; one value a run"
    chances = _chances(sides)
    return f"{text}; widened for {chances} comparisons (Bonferroni)" if chances > 1 else text


def _chances(sides: Sequence[Side]) -> int:
    """How many comparisons with the first side there are that could err, 1 at least.

    A side of which no run succeeded is judged by nothing, so it can give no false verdict and widens no interval. One
    with a single run counts: its verdict may only wait for more. The same for every metric, also where one is not
    known for a side: that can only widen.
    """
    return max(1, sum(1 for side in sides[1:] if side.counted))


def _published(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Published speeds of the same model, GPU and sequence length, for any side that has such a card."""
    out: list[dict[str, Any]] = []
    for side in sides:
        for run in side.counted[:1]:
            config = run.meta.get("config") or {}
            model = (config.get("model") or {}).get("name")
            length = (config.get("training") or {}).get("sequence_length")
            if model:
                out += [{"side": side.name, **row} for row in published(str(model), _gpu(run)[0], length)]
    return out


def _notes(sides: Sequence[Side], metrics: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader must know beside the figures."""
    notes = []
    for side in sides:
        gone = side.left_out
        if gone:
            which = ", ".join(f"{r.id} ({r.state or 'state unknown'})" for r in gone)
            why = dict.fromkeys(printable(str(r.meta["reason"])) for r in gone if r.meta.get("reason"))
            said = f" ({'; '.join([*why][:_REASONS]).rstrip('.')})" if why else ""
            notes.append(f"{side.name}: not counted, because they did not succeed: {which}{said}.")
        unknown = [f"{r.id} ({r.meta.get('reason')})" for r in side.counted if r.open_ended]
        if unknown:
            notes.append(f"{side.name}: how these ended is not known: {', '.join(unknown)}.")
        again = [r.id for r in side.counted if _AGAIN.search(r.id)]
        if again:
            notes.append(f"{side.name}: stands in for a run that did not succeed: {', '.join(again)}.")
        for metric in metrics:
            n = metric["sides"][side.name]["n"]
            if 0 < n < len(side.counted):
                notes.append(f"{side.name}: {metric['name']} is known for {n} of {len(side.counted)} runs.")
    notes += [*_uneven_warmup(sides), *energy_notes(sides)]
    if len(sides) > 1 and len(metrics) > 1:
        notes.append(
            f"{len(metrics)} metrics are shown; only the primary is the verdict. The others are each judged at 95 %, "
            "so of equal sides about one in twenty of them errs."
        )
    return notes


def _uneven_warmup(sides: Sequence[Side]) -> list[str]:
    """A note where some runs are too short to have their warm-up dropped while others had it looked for."""
    lengths = [r.summary.get("iterations") or {} for s in sides for r in s.counted]
    timed = [it["warmup_dropped"] + it["steady"] for it in lengths if it.get("steady")]
    needed = steady.BATCH * steady.MIN_BATCHES
    short = sum(n < needed for n in timed)
    if not 0 < short < len(timed):
        return []
    return [
        f"{short} of {len(timed)} runs had fewer than {needed} iterations, too few to tell their warm-up, and keep "
        "it; the others do not: that alone makes a difference."
    ]
