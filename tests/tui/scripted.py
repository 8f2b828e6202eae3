"""Sessions for the screen's tests: one that a test drives by hand, and a duel that plays by itself."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.core.errors import Exit
from cockpit.core.events import Event, Iteration, Stage, State, StateChange
from cockpit.core.state import RunState, reduce
from cockpit.engine.observer import GroupInfo, Observer, Outcome

GROUP = "20260131-093000-duel-local-4f2a"
T0 = 1_769_850_000.0


def planned(servers: Sequence[str] = ("left", "right"), repeats: int = 2, total: int | None = 120) -> list[RunState]:
    """The runs of a duel in the order of their turns."""
    return [
        RunState(
            run=f"{GROUP}.{server}.r{repeat + 1}",
            group=GROUP,
            server=server,
            vendor="cpu",
            queue="local",
            repeat=repeat,
            total=total,
        )
        for repeat in range(repeats)
        for server in servers
    ]


def comparison(verdict: str = "indistinguishable", why: str = "The interval holds 1.") -> dict[str, Any]:
    """A small ekvi.compare/1 of left and right."""
    sides = {"left": (12310.0, [12100.0, 12520.0]), "right": (12290.0, [12080.0, 12500.0])}
    return {
        "schema": "ekvi.compare/1",
        "scope": "this one machine",
        "sides": [
            {
                "name": s,
                "runs": [f"{GROUP}.{s}.r{i}" for i in (1, 2, 3)],
                "left_out": [],
                "vendor": "cpu",
                "gpu": {"model": None, "count": 0},
            }
            for s in sides
        ],
        "within": 0.01,
        "method": "Student's t over the logarithms of the runs",
        "primary": "tokens_per_s",
        "headline": "No difference between left and right can be shown.",
        "parity": {"verdict": "fair", "differences": []},
        "metrics": [
            {
                "name": "tokens_per_s",
                "unit": "tokens/s",
                "better": "higher",
                "primary": True,
                "sides": {s: {"value": v, "ci95": ci, "n": 3} for s, (v, ci) in sides.items()},
                "ratio": {"value": 0.998, "ci95": [0.975, 1.022], "side": "right"},
                "verdict": verdict,
                "why": why,
                "needs_runs": None,
            }
        ],
        "loss_parity": {
            "verdict": "same",
            "max_rel_diff": 0.0,
            "tolerance": 0.001,
            "note": "the least asked",
            "final_rel_diff": 0.0,
            "finals": dict.fromkeys(sides, 2.7),
            "aligned_by": "tokens",
        },
        "published": [],
        "notes": [],
    }


# What a GPU says ten times a second, with the slow fields among it.
_GPU = {
    "mem_busy": 0.4,
    "mem_used": 61e9,
    "mem_total": 150e9,
    "temp_hot_c": None,
    "temp_mem_c": 66.0,
    "clk_sm_mhz": 1755.0,
    "clk_min_mhz": 1755.0,
    "clk_max_mhz": 1755.0,
    "clk_mem_mhz": 3201.0,
    "throttle": ["power"],
    "tensor": 0.43,
    "dram_bw": 0.31,
    "energy_j": 1234567.0,
}


class Script:
    """A session that does what the test says, when it says it."""

    def __init__(self, runs: Sequence[RunState] | None = None, *, live: bool = True, theme: str = "nord") -> None:
        self.states = {r.run: r for r in (planned() if runs is None else runs)}
        self.info = GroupInfo(GROUP, "duel-local", theme, tuple(self.states.values()), live=live)
        self.began = asyncio.Event()
        self.over: asyncio.Future[Outcome] | None = None
        self.paces: list[float] = []
        self.stops: list[str | None] = []
        self.detached = False
        self.speed = 1.0
        self._offsets: dict[str, int] = {}

    async def run(self, observer: Observer) -> Outcome:
        """Begin, wait for `finish`, end."""
        self.observer = observer
        self.over = asyncio.get_running_loop().create_future()
        observer.begin(self.info)
        self.began.set()
        outcome = await self.play()
        observer.end(outcome)
        return outcome

    async def play(self) -> Outcome:
        """What happens between begin and end."""
        assert self.over is not None
        return await self.over

    async def stop(self, run: str | None = None) -> None:
        """Note the wish and end as cancelled."""
        self.stops.append(run)
        self.finish(Outcome(GROUP, "CANCELLED", int(Exit.INTERRUPTED)))

    def detach(self) -> None:
        """Note the wish and end as detached."""
        self.detached = True
        self.finish(Outcome(GROUP, "DETACHED", int(Exit.OK)))

    def pace(self, speed: float) -> None:
        """Note the speed."""
        self.paces.append(speed)

    def finish(self, outcome: Outcome) -> None:
        """End the session."""
        if self.over is not None and not self.over.done():
            self.over.set_result(outcome)

    def name(self, server: str, repeat: int = 1) -> str:
        """The id of a run."""
        return f"{GROUP}.{server}.r{repeat}"

    def emit(self, run: str, event: Event) -> None:
        """Reduce an event and hand it on, as the engine does."""
        reduce(self.states[run], event)
        self.observer.event(run, event)

    def state(self, run: str, state: State, t: float = T0, **fields: Any) -> None:
        """Change a run's state."""
        self.emit(run, StateChange(state=state, t=t, **fields))

    def iteration(
        self, run: str, step: int, loss: float | None, *, step_s: float = 0.1, t: float | None = None
    ) -> None:
        """One iteration of 1,024 tokens, with its line in the log."""
        at = T0 + step * step_s if t is None else t
        total = self.states[run].total
        self.emit(run, Iteration(step=step, total=total, loss=loss, step_s=step_s, tokens=1024, samples=8, t=at))
        self.log(
            run,
            f" iteration {step:8d}/{total or 0:8d} | elapsed time per iteration (ms): {step_s * 1e3:.1f} | "
            f"learning rate: 1.000000E-03 | lm loss: {loss if loss is not None else math.nan:.6E} |\n".encode(),
        )

    def log(self, run: str, data: bytes) -> None:
        """Bytes at the end of a run's output."""
        offset = self._offsets.get(run, 0)
        self._offsets[run] = offset + len(data)
        self.observer.log(run, offset, data)

    def hello(self, run: str, **fields: Any) -> None:
        """A server's agent presents itself."""
        self.observer.tick(
            run,
            {"type": "hello", "schema": "ekvi.gpu/1", "backend": "proc", "vendor": "cpu", "devices": [], **fields},
        )

    def tick(self, run: str, load: float | None, devices: Sequence[Mapping[str, Any]] = (), **host: Any) -> None:
        """One sample."""
        values = {"cpu_util": load, "mem_used": 3.2 * 2**30, "mem_total": 16 * 2**30, "power_w": None, **host}
        at = time.monotonic_ns()
        stamps = {"seq": 0, "t_mono_ns": at, "t_wall_ns": at}
        self.observer.tick(run, {"type": "tick", **stamps, "devices": list(devices), "host": values})


class Duel(Script):
    """A duel that plays by itself: turns, losses that fall, loads that breathe; then a comparison."""

    def __init__(
        self,
        servers: Sequence[str] = ("left", "right"),
        *,
        repeats: int = 3,
        total: int = 120,
        rate: float = 20.0,
        lines: float = 0.0,
        gpus: int = 0,
        tick_hz: float = 2.0,
        together: bool = False,
        live: bool = True,
    ) -> None:
        super().__init__(planned(servers, repeats, total), live=live)
        self.rate, self.lines, self.gpus, self.tick_hz, self.together = rate, lines, gpus, tick_hz, together
        self._random = random.Random(7)

    async def play(self) -> Outcome:
        """All runs in turns, or each server's side by side."""
        by_server: dict[str, list[RunState]] = {}
        for run in self.states.values():
            by_server.setdefault(run.server, []).append(run)
        queues = list(by_server.values()) if self.together else [list(self.states.values())]
        works = [asyncio.ensure_future(self._queue(q)) for q in queues]
        assert self.over is not None
        waits: list[asyncio.Future[Any]] = [self.over, asyncio.gather(*works, return_exceptions=True)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for work in works:
                work.cancel()
        return self.over.result() if self.over.done() else Outcome(GROUP, "SUCCEEDED", 0, comparison())

    async def _queue(self, runs: Sequence[RunState]) -> None:
        for at, run in enumerate(runs):
            t = T0 + at * (run.total or 100) / self.rate
            self.state(run.run, State.STARTING, t)
            self.hello(run.run, **({"backend": "nvml"} if self.gpus else {}))
            self.state(run.run, State.RUNNING, t, stage="train")
            self.emit(run.run, Stage(stage="train", status="start"))
            self.log(run.run, b"building the model: 1.05 M parameters, 4 layers, hidden 128\nwarning: no RAPL here\n")
            sampler = asyncio.ensure_future(self._sample(run.run))
            chatter = asyncio.ensure_future(self._chatter(run.run))
            side = hash(run.server) % 7 / 100
            for step in range(1, (run.total or 100) + 1):
                await asyncio.sleep(1 / self.rate)
                loss = 2.6 + 4.4 * math.exp(-step / 28) + self._random.gauss(0, 0.05) + side
                self.iteration(
                    run.run,
                    step,
                    loss,
                    step_s=0.083 * (1 + abs(self._random.gauss(0, 0.05)) + 3 * (step == 1)),
                    t=t + step / self.rate,
                )
                self.log(run.run, b'@ekvi {"type":"iteration","step":%d}\n' % step)
            sampler.cancel()
            chatter.cancel()
            self.state(run.run, State.SUCCEEDED, t + (run.total or 100) / self.rate, exit_code=0)

    async def _sample(self, run: str) -> None:
        while True:
            load = min(1.0, max(0.0, self._random.gauss(0.8, 0.12)))
            devices = [
                {**_GPU, "index": i, "util": load, "power_w": 640.0 + i, "temp_edge_c": 51.0 + i}
                for i in range(self.gpus)
            ]
            self.tick(run, load, devices)
            await asyncio.sleep(1 / self.tick_hz)

    async def _chatter(self, run: str) -> None:
        if not self.lines:
            return
        beat, number = 0.02, 0
        while True:
            count = int(self.lines * beat)
            number += count
            self.log(
                run, b"".join(b"[rank0] step detail %d of the training loop, all is well\n" % i for i in range(count))
            )
            await asyncio.sleep(beat)
