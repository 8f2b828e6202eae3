"""One run's figures: `ekvi.summary/1`, what `show` prints. What cannot be known is None with the reason beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cockpit.core.events import Diagnostic
from cockpit.core.text import finite
from cockpit.metrics import figures, flops, interval, iterations, nodes, origin, steady, target
from cockpit.metrics.specs import gpu_spec
from cockpit.metrics.standing import standing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Columns = Mapping[str, Floats]

SCHEMA = "ekvi.summary/1"
LOSS_TAIL = 10
P99_NEEDS = 100
_STEP_S = (1e-9, 1e9)  # seconds: what lies outside is no step time but a damaged log
_NO_GPU = "no GPU on this server"
_PER_TOKEN = ("energy_per_token_j", "tokens_per_j")
_SAID = ("provenance", "model", "data", "calibrate", "target", "resumed")  # diagnostics that speak of the whole run

UNITS: dict[str, str] = {
    "tokens_per_s": "token/s",
    "tokens_per_s_gpu": "token/s/GPU",
    "tflops_gpu": "TFLOP/s/GPU",
    "mfu": "1",
    "mfu_measured": "1",
    "step_s": "s",
    "step_s_p99": "s",
    "loss_final": "1",
    "mem_peak_by": "By",
    "host_mem_peak_by": "By",
    "power_w": "W",
    "power_idle_w": "W",
    "energy_j": "J",
    "energy_warmup_j": "J",
    "energy_above_idle_j": "J",
    "energy_per_token_j": "J/token",
    "tokens_per_j": "token/J",
    "tokens_per_usd": "token/USD",
    "temp_max_c": "Cel",
    "throttled_ratio": "1",
    "node_power_w": "W",
    "node_energy_j": "J",
    "time_to_target_min": "min",
}


@dataclass(slots=True)
class _Run:
    """What the metrics of one run are made from. `step_s`, `tokens` and `steps` are of the steady iterations.

    `steps` is how many steps each line stands for: more than one where the log leaves some out. `passed` counts those
    since the line before, also over a hole in the log.
    """

    meta: Mapping[str, Any]
    said: dict[str, dict[str, Any]]
    ticks: nodes.Nodes
    total: int
    dropped: int
    untimed: int
    missing: int
    step_s: Floats
    tokens: Floats
    steps: Floats
    passed: Floats
    loss: Floats
    window: tuple[float, float] | None
    tokens_note: str | None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    energy: dict[str, Any] | None = None  # scope and source of its figures

    @property
    def config(self) -> Mapping[str, Any]:
        return self.meta.get("config") or {}

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which of the steady iterations tell how many tokens they hold."""
        import numpy as np

        return np.isfinite(self.tokens) & (self.tokens > 0)

    @property
    def gpus(self) -> int | None:
        """How many GPUs trained; 0 on a CPU server, None where nothing says."""
        seen, on_cpu = self.ticks.count(), self.meta.get("vendor") == "cpu"
        return seen or (0 if on_cpu else None)

    def put(
        self,
        name: str,
        value: float | None,
        *,
        n: int | None = None,
        ci95: tuple[float, float] | None = None,
        note: str | None = None,
    ) -> None:
        """Set one metric; NaN and infinity are unknown."""
        known = value is not None and math.isfinite(value)
        self.metrics[name] = {
            "value": float(value) if known and value is not None else None,
            "unit": UNITS[name],
            "n": n,
            "ci95": [float(ci95[0]), float(ci95[1])] if known and ci95 is not None else None,
            "note": note if known or note else "not a finite number",
        }

    def value(self, name: str) -> float | None:
        found: float | None = self.metrics[name]["value"]
        return found


def summarise(
    meta: Mapping[str, Any],
    columns: Columns,
    ticks: Iterable[Mapping[str, Any]] | nodes.Nodes = (),
    diagnostics: Iterable[Diagnostic] = (),
    *,
    others: Sequence[Iterable[Mapping[str, Any]]] = (),
) -> dict[str, Any]:
    """The summary of one run.

    `meta` is the content of run.json. `columns` holds one entry an iteration, NaN where unknown: `step`, `loss`,
    `step_s` (seconds), `tokens` (of that step over all ranks), `t` (server's wall clock at its end, seconds).
    `ticks` are the objects of telemetry.jsonl, `others` those of the further nodes' (or `ticks` is what `nodes.read`
    made of all of them), `diagnostics` those of the journal. `n` of a metric counts the iterations it was made from
    (None where it comes from telemetry).
    """
    read = ticks if isinstance(ticks, nodes.Nodes) else nodes.read((ticks, *others), meta)
    run = _gather(meta, columns, read, diagnostics)
    _speed(run)
    _compute(run)
    _loss(run)
    _machine(run)
    _energy(run)
    _goals(run)
    gpus = run.gpus
    return {
        "schema": SCHEMA,
        "id": meta.get("id"),
        "group": meta.get("group"),
        "server": meta.get("server"),
        "vendor": meta.get("vendor"),
        "gpu": {"model": run.ticks.model(), "count": gpus},
        "state": meta.get("state"),
        "iterations": {
            "total": run.total,
            "warmup_dropped": run.dropped,
            "steady": int(run.step_s.size),
            "change_points": None,
            "note": _iterations_note(run),
        },
        "flops_convention": flops.CONVENTION,
        "metrics": {name: run.metrics[name] for name in UNITS},
        "energy": run.energy,
        "calibration": standing([run.said["calibrate"]], run.ticks.model()) if "calibrate" in run.said else None,
        "provenance": _provenance(run),
    }


def _gather(
    meta: Mapping[str, Any],
    columns: Columns,
    ticks: nodes.Nodes,
    diagnostics: Iterable[Diagnostic],
) -> _Run:
    import numpy as np

    said: dict[str, dict[str, Any]] = {}
    for one in sorted(diagnostics, key=lambda d: -d.node):  # of several nodes the first has the last word
        if one.code in _SAID:
            before = said.setdefault(one.code, {})
            if one.code == "data" and before.get("sha256", one.data.get("sha256")) != one.data.get("sha256"):
                before["nodes_differ"] = True  # each prepares its own
            before.update(one.data)
    step_s = iterations.column(columns, "step_s", None)
    size = step_s.size
    timed = (step_s > _STEP_S[0]) & (step_s < _STEP_S[1])
    dropped = steady.mser5(step_s[timed])
    kept = np.flatnonzero(timed)[dropped:]
    tokens, note = iterations.tokens_of(iterations.column(columns, "tokens", size), meta)
    step = iterations.column(columns, "step", size)
    weight = iterations.stands_for(step)
    return _Run(
        meta=meta,
        said=said,
        ticks=ticks,
        total=size,
        dropped=dropped,
        untimed=int(size - timed.sum()),
        missing=iterations.missing(step, weight, meta),
        step_s=step_s[kept],
        tokens=tokens[kept],
        steps=weight[kept],
        passed=iterations.passed(step[kept], weight[kept]),
        loss=iterations.column(columns, "loss", size),
        window=iterations.window(iterations.column(columns, "t", size), step_s * weight, kept),
        tokens_note=note,
    )


def _iterations_note(run: _Run) -> str:
    import numpy as np

    timed = run.total - run.untimed
    needed = steady.BATCH * steady.MIN_BATCHES
    words = ["change points: not looked for"]
    if timed < needed:
        words.insert(0, f"nothing dropped as warm-up: MSER-5 needs {needed} timed iterations, here are {timed}")
    if run.untimed:
        words.insert(0, f"{run.untimed} iterations without a step time are left out")
    every = float(np.median(run.steps)) if run.steps.size else 1.0
    if every > 1:
        words.insert(0, f"a line of the log stands for {every:g} iterations")
    if run.missing:
        words.insert(0, f"{run.missing} iterations are not in the log")
    return "; ".join(words)


def _speed(run: _Run) -> None:
    """tokens_per_s, tokens_per_s_gpu, step_s and step_s_p99."""
    import numpy as np

    n = int(run.step_s.size)
    none = "no iteration has a step time"
    steps = run.steps[run.counted]
    tokens, seconds = run.tokens[run.counted] * steps, run.step_s[run.counted] * steps
    if seconds.size:
        rate = float(tokens.sum() / seconds.sum())
        ci = interval.ratio_interval(tokens, seconds)
        run.put("tokens_per_s", rate, n=int(seconds.size), ci95=ci, note=run.tokens_note)
    else:
        run.put("tokens_per_s", None, note="the log does not say how many tokens a step holds" if n else none)
    _per_gpu(run)
    if not n:
        run.put("step_s", None, note=none)
        run.put("step_s_p99", None, note=none)
        return
    run.put("step_s", float(np.median(run.step_s)), n=n, ci95=interval.median_interval(run.step_s), note="median")
    few = f"of fewer than {P99_NEEDS} iterations this is nearly the slowest" if n < P99_NEEDS else None
    every = float(np.median(run.steps))
    if every > 1:
        few = f"of means over {every:g} iterations, as logged: single ones may be slower"
    run.put("step_s_p99", float(np.percentile(run.step_s, 99)), n=n, note=few)


def _per_gpu(run: _Run) -> None:
    whole = run.metrics["tokens_per_s"]
    gpus = run.gpus
    if not gpus:
        why = _NO_GPU if gpus == 0 else "how many GPUs trained is not known (no GPU telemetry)"
        run.put("tokens_per_s_gpu", None, note=why)
        return
    ci = whole["ci95"]
    run.put(
        "tokens_per_s_gpu",
        whole["value"] / gpus if whole["value"] is not None else None,
        n=whole["n"],
        ci95=(ci[0] / gpus, ci[1] / gpus) if ci else None,
        note=whole["note"],
    )


def _compute(run: _Run) -> None:
    """tflops_gpu, mfu and mfu_measured."""
    speed = run.metrics["tokens_per_s_gpu"]
    cost = flops.token_cost(run.config, run.said.get("model") or {})
    names = ("tflops_gpu", "mfu", "mfu_measured")
    if speed["value"] is None or cost is None:
        why = speed["note"] if speed["value"] is None else "the FLOP a token costs is not known for this model"
        for name in names:
            run.put(name, None, note=why)
        return
    rate, ci = cost / 1e12, speed["ci95"]
    tflops = speed["value"] * rate
    scaled = (ci[0] * rate, ci[1] * rate) if ci else None
    run.put("tflops_gpu", tflops, n=speed["n"], ci95=scaled, note=f"convention {flops.CONVENTION}")
    _utilisation(run, tflops, speed["n"])


def _utilisation(run: _Run, tflops: float, n: int | None) -> None:
    runner, training = run.config.get("runner") or {}, run.config.get("training") or {}
    said = runner.get("declares") or {} if runner.get("name") == "command" else training
    precision = str(said.get("precision"))
    model = run.ticks.model()
    spec = gpu_spec(model)
    peak = spec.peak_tflops(precision) if spec else None
    if peak is None or spec is None:
        run.put("mfu", None, note=f"the dense {precision} peak of {model or 'an unnamed GPU'} is not known")
    else:
        mfu = tflops / peak
        odd = "; above 1: check the FLOP count and the peak" if mfu > 1 else ""
        run.put("mfu", mfu, n=n, note=f"of {peak:g} TFLOP/s dense {precision} ({spec.name}){odd}")
    found = run.said.get("calibrate")
    measured = (found or {}).get("matmul_tflops")
    if not isinstance(measured, (int, float)) or measured <= 0:
        why = "no calibration with this run" if found is None else "the calibration found no rate in its precision"
        run.put("mfu_measured", None, note=why)
    else:
        run.put("mfu_measured", tflops / measured, n=n, note=f"of {measured:g} TFLOP/s measured")


def _loss(run: _Run) -> None:
    import numpy as np

    last = run.loss[-LOSS_TAIL:]  # not the last known ones: a run that diverged has no final loss
    tail = last[np.isfinite(last)]
    if not tail.size:
        some = bool(np.isfinite(run.loss).any())
        why = f"none of the last {last.size} iterations has a finite loss" if some else "the log holds no loss"
        run.put("loss_final", None, note=why)
        return
    few = f"only {tail.size} of the last {LOSS_TAIL} iterations have a finite loss"
    short = f"the run has fewer than {LOSS_TAIL} iterations"
    note = None if tail.size == LOSS_TAIL else few if last.size == LOSS_TAIL else short
    run.put("loss_final", float(tail.mean()), n=int(tail.size), note=note)


def _machine(run: _Run) -> None:
    """mem_peak_by, host_mem_peak_by, power_w, temp_max_c and throttled_ratio.

    Where the steady part is not known, power and throttling are the run's: never those of the baseline before it.
    """
    ticks, lasted = run.ticks, run.ticks.span(run.meta)
    gpu_memory, host_memory = ticks.peak_memory(lasted), ticks.peak_host_memory()
    some = any(True for _ in ticks.devices())
    without = _NO_GPU if run.gpus == 0 else "no GPU reports memory" if some else "no GPU telemetry"
    told = "; ".join(x for x in ("largest GPU, whole run", gpu_memory.note) if x)
    run.put("mem_peak_by", gpu_memory.value, note=without if gpu_memory.value is None else told)
    told = "; ".join(x for x in ("whole node, other programs included", host_memory.note) if x)
    run.put("host_mem_peak_by", host_memory.value, note="no telemetry" if host_memory.value is None else told)
    partly = "" if run.window else f"{'whole run' if lasted else 'all telemetry'}: the log carries no time"
    for name, reading in (
        ("power_w", ticks.power_w(run.window or lasted)),
        ("temp_max_c", ticks.hottest(lasted)),
        ("throttled_ratio", ticks.throttled(run.window or lasted)),
    ):
        note = _NO_GPU if run.gpus == 0 and name != "power_w" else reading.note
        notes = [note, partly if reading.value is not None and name != "temp_max_c" else None]
        run.put(name, reading.value, note="; ".join(x for x in notes if x) or None)


def _energy(run: _Run) -> None:
    """Energy and idle power of the run's GPUs, and the nodes'; see figures.energy_figures."""
    tokens = None
    if run.value("tokens_per_s") is not None:  # a line that does not tell its tokens had those of the others
        told = run.counted
        tokens = float((run.tokens * run.passed)[told].sum() * (run.passed.sum() / run.passed[told].sum()))
    found = figures.energy_figures(run.ticks, run.meta, run.window, tokens)
    run.energy = found.source
    for name, reading in found.readings.items():
        n = run.metrics["tokens_per_s"]["n"] if name in _PER_TOKEN and reading.value is not None else None
        run.put(name, reading.value, n=n, note=reading.note)


def _goals(run: _Run) -> None:
    """tokens_per_usd (from the plan's price of a GPU) and time_to_target_min."""
    price = (run.meta.get("plan") or {}).get("usd_per_gpu_hour")
    speed = run.metrics["tokens_per_s_gpu"]
    if not price:
        run.put("tokens_per_usd", None, note="no price is configured")
    elif speed["value"] is None:
        run.put("tokens_per_usd", None, note=f"the price is of a GPU's hour, but: {speed['note']}")
    else:
        run.put("tokens_per_usd", speed["value"] * 3600 / price, n=speed["n"], note=f"{price:g} USD a GPU and hour")
    wanted = (run.config.get("runner") or {}).get("target_loss")
    value, why = target.minutes(run.said.get("target"), wanted)
    run.put("time_to_target_min", value, note=why)


def _provenance(run: _Run) -> dict[str, Any]:
    """run.json's provenance, with what the runner said of itself, its model and its data under their own keys."""
    out = dict(run.meta.get("provenance") or {})
    for code, key in (
        ("provenance", "runner"),
        *((code, code) for code in ("model", "data", "calibrate", "resumed")),
    ):
        if code in run.said:
            out[key] = {**(out.get(key) or {}), **run.said[code]}
    out.update(origin.origin(run.ticks.each, run.meta))
    boot = (run.ticks.first.hello or {}).get("boot_id")
    if boot:
        out["boot_id"] = boot
    if len(run.ticks.each) > 1:
        hellos = [one.hello or {} for one in run.ticks.each]
        errors = run.ticks.clock_errors or (None,) * len(hellos)
        out["nodes"] = [
            {"boot_id": hello.get("boot_id"), "host": hello.get("host"), "clock_error_s": error}
            for hello, error in zip(hellos, errors, strict=True)
        ]
    told: dict[str, Any] = finite(out)  # hello is what a server sent
    return told
