"""Whether two ways to train give the same: loss curves on real text, and the first gradients against fp32.

    python -m tests.bench.curves --config FILE.json [--steps N] [KEY=VALUE...] -- [KEY=VALUE...] [-- ...]

Each list of KEY=VALUE is a side: the resolved configuration with those keys changed. The first side is what the
others are compared with. Curves are real runs of `python -m runners`, under torchrun where a side asks for several
processes. Gradients are those of the first step, of sides of one process, against the same weights in fp32 with plain
kernels.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from runners import wire
from runners.schema import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PLAIN = (
    "training.precision=fp32",
    "training.kernels.layer=plain",
    "training.kernels.loss=plain",
    "training.kernels.optimizer=plain",
    "training.kernels.attention=auto",
    "training.recompute=none",
)
ROUNDED = {"bf16": "bfloat16", "fp8": "bfloat16", "fp16": "float16"}  # what weights a precision begins with
PARTS = ("embedding", "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "norm", "output_layer")


@dataclass
class Side:
    """One way to train, and what it gave."""

    words: tuple[str, ...]
    config: dict[str, Any]
    losses: list[float | None] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its keys without their sections."""
        return " ".join(word.rpartition(".")[2] for word in self.words) or "(as given)"

    @property
    def processes(self) -> int:
        """How many processes it takes."""
        return RunConfig.model_validate(self.config).training.parallel.processes


def changed(config: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """A copy of `config` with each KEY=VALUE set; values are JSON, or text where they are none."""
    out = copy.deepcopy(config)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SystemExit(f"{word!r} is no KEY=VALUE")
        *sections, last = key.split(".")
        section = out
        for name in sections:
            section = section.setdefault(name, {})
        try:
            section[last] = json.loads(text)
        except ValueError:
            section[last] = text
    return out


def run(side: Side, folder: Path, cache: Path) -> None:
    """Train the side to its end and keep its curve; SystemExit with the runner's own words where it fails."""
    config = folder / "config.json"
    config.write_text(json.dumps(side.config))
    command = [sys.executable, "-m", "runners", "--config", str(config), "stage=train"]
    if side.processes > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(side.processes)]
        command = [sys.executable, "-m", *torchrun, *command[1:]]
    with subprocess.Popen(command, cwd=ROOT, env=environment(folder, cache), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said = wire.parse(line)
            if said is not None and said["type"] == "iteration":
                side.losses.append(said["loss"])
                side.norms.append(said["grad_norm"])
                side.seconds.append(said["step_s"])
    if child.returncode:
        raise SystemExit(f"{side.name}: the runner ended with {child.returncode}")


def environment(folder: Path, cache: Path) -> dict[str, str]:
    """The environment of a runner or of a worker of ours."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "EKVI_OUT": str(folder), "EKVI_CACHE": str(cache), "PYTHONPATH": path, "EKVI_RUN": "curves"}


def gradients(config: dict[str, Any], target: Path, cache: Path, rounded: str | None = None) -> None:
    """Write the first step's gradients of a configuration, by a process of its own; SystemExit where it fails."""
    path = target.with_suffix(".json")
    path.write_text(json.dumps(config))
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.curves", "--worker", str(path), str(target)]
    done = subprocess.run(
        command + ([rounded] if rounded else []), cwd=ROOT, env=environment(target.parent, cache), check=False
    )
    if done.returncode:
        raise SystemExit(f"{target.stem}: the first step ended with {done.returncode}")


def work(path: str, target: str, rounded: str | None = None) -> None:
    """The worker: one forward and backward, each parameter's gradient into `target`, fp32 on the host, by its name.

    `rounded` is the type that the weights are rounded to before, as a training in that type does.
    """
    import torch

    from runners import group
    from runners.data import prepare, samples
    from runners.megatron import train
    from runners.megatron.backend import select
    from runners.process import Process

    config, cache = RunConfig.model_validate_json(Path(path).read_text()), Path(os.environ["EKVI_CACHE"])
    backend = select(config.training.backend)
    backend.check(config)
    backend.start(config.training)
    entry = prepare.find(config.data, cache)
    index = samples.index(config, entry, cache)
    with group.joined(Process.from_environment({}), backend.collective):
        training = train.set_up(config, backend, entry, index, train._vocab(config, entry))
        named = [(name, p) for chunk in training.chunks for name, p in chunk.module.named_parameters()]
        if rounded:
            with torch.no_grad():
                for _name, parameter in named:
                    parameter.copy_(parameter.to(getattr(torch, rounded)))
        for chunk in training.chunks:
            chunk.zero_grad_buffer()
        training.pipeline(training.batches(training.samples, 1), forward_only=False)
        scale = training.updates.loss_scale
        found = {name: _gradient(p).detach().float().cpu() / scale for name, p in named}
    torch.save(found, target)


def _gradient(parameter: Any) -> Any:
    """Where megatron-core's data parallelism, or torch, has added it up."""
    own = getattr(parameter, "main_grad", None)
    return parameter.grad if own is None else own


def apart(path: Path, reference: Path) -> tuple[dict[str, float], str]:
    """|g - r| / |r| in 2-norms, by part of the model, of the worst parameter and in total; that parameter's name."""
    import torch

    ours, theirs = (torch.load(each, mmap=True) for each in (path, reference))
    if not any(bool(gradient.any()) for gradient in theirs.values()):
        raise SystemExit("the reference has no gradients")
    squares: dict[str, list[float]] = {}
    worst = ("", 0.0)
    for name, expected in theirs.items():
        difference = float((ours[name] - expected).double().square().sum())
        size = float(expected.double().square().sum())
        part = next((part for part in PARTS if part in name), "other")
        for key in (part, "total"):
            so_far = squares.setdefault(key, [0.0, 0.0])
            so_far[0] += difference
            so_far[1] += size
        if size and difference / size > worst[1]:
            worst = (name, difference / size)
    relative = {key: (d / r) ** 0.5 if r else 0.0 for key, (d, r) in squares.items()}
    ordered = {key: relative[key] for key in (*PARTS, "other") if key in relative}
    return {**ordered, "worst parameter": worst[1] ** 0.5, "total": relative["total"]}, worst[0]


def compared(side: Side, first: Side) -> dict[str, float]:
    """Figures of a curve beside the first side's; losses in nats a token."""
    pairs = [(a, b) for a, b in zip(side.losses, first.losses, strict=True) if a is not None and b is not None]
    gaps = [abs(a - b) for a, b in pairs]
    tail = max(1, len(pairs) // 10)
    return {
        "steps with a loss": len(pairs),
        "first loss": pairs[0][0],
        "last loss": pairs[-1][0],
        "mean of the last tenth": fmean(a for a, _b in pairs[-tail:]),
        "its gap": abs(fmean(a - b for a, b in pairs[-tail:])),
        "largest gap": max(gaps),
        "mean gap": fmean(gaps),
        "mean signed gap": fmean(a - b for a, b in pairs),
        "step, median ms": median(side.seconds) * 1000,
    }


def table(title: str, columns: list[tuple[str, dict[str, float]]]) -> str:
    """A row a figure, a column a side."""
    keys = list(dict.fromkeys(key for _name, figures in columns for key in figures))
    names = [f"({number}) {name}" for number, (name, _figures) in enumerate(columns, 1)]
    width = max(len(key) for key in keys)
    lines = [title, *names, " " * width + "".join(f"{f'({n})':>14}" for n in range(1, len(columns) + 1))]
    for key in keys:
        cells = (f"{figures[key]:>14.6g}" if key in figures else " " * 13 + "-" for _name, figures in columns)
        lines.append(f"{key:<{width}}" + "".join(cells))
    return "\n".join(lines)


def measure(sides: list[Side], cache: Path, *, curves: bool, batch: int) -> dict[str, list[tuple[str, Any]]]:
    """Run what was asked for; figures by kind, and by side within."""
    from runners.data import prepare

    prepare.ensure(RunConfig.model_validate(sides[0].config).data, cache)
    out: dict[str, list[tuple[str, Any]]] = {"curves": [], "gradients": []}
    with tempfile.TemporaryDirectory() as scratch:
        if curves:
            for number, side in enumerate(sides):
                folder = Path(scratch) / str(number)
                folder.mkdir()
                run(side, folder, cache)
                out["curves"].append((side.name, compared(side, sides[0])))
                print(table("loss curves", out["curves"]), flush=True)
        references: dict[str | None, Path] = {}
        for number, side in enumerate(sides if batch else ()):
            if side.processes > 1:
                continue
            few = tuple(
                f"training.{word}"
                for word in ("micro_batch=1", f"global_batch={batch}", "train_iters=1", "warmup_steps=0")
            )
            rounded = ROUNDED.get(side.config["training"].get("precision", "fp32"))
            if rounded not in references:
                references[rounded] = Path(scratch) / f"reference-{rounded}"
                gradients(changed(side.config, (*few, *PLAIN)), references[rounded], cache, rounded)
            target = Path(scratch) / f"gradients-{number}"
            gradients(changed(side.config, few), target, cache)
            found, worst = apart(target, references[rounded])
            out["gradients"].append((f"{side.name}; worst: {worst or 'none'}", found))
            target.unlink()
            print(table("gradients of the first step against fp32", out["gradients"]), flush=True)
    return out


def main(argv: list[str]) -> None:
    """The command line."""
    if argv[:1] == ["--worker"]:
        work(*argv[1:])
        return
    begin = next((i for i, word in enumerate(argv) if word == "--" or ("=" in word and word[0] != "-")), len(argv))
    parser = argparse.ArgumentParser("tests.bench.curves", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a resolved configuration")
    parser.add_argument("--steps", type=int, default=200, help="training.train_iters of the curves")
    parser.add_argument("--no-curves", dest="curves", action="store_false", help="gradients alone")
    parser.add_argument("--gradient-batch", type=int, default=2, help="sequences of the gradients' step; 0: none")
    parser.add_argument("--cache", type=Path, default=Path("build/curves-cache"), help="the prepared data's folder")
    parser.add_argument("--json", type=Path, help="also write the figures and the curves there")
    asked = parser.parse_args(argv[:begin])
    base = changed(json.loads(asked.config.read_text()), (f"training.train_iters={asked.steps}",))
    lists: list[list[str]] = [[]]
    for word in argv[begin:]:
        lists.append([]) if word == "--" else lists[-1].append(word)
    sides = [Side(tuple(words), changed(base, tuple(words))) for words in lists]
    figures = measure(sides, asked.cache.resolve(), curves=asked.curves, batch=asked.gradient_batch)
    if asked.json:
        curves = [{"side": side.name, "loss": side.losses, "grad_norm": side.norms} for side in sides]
        asked.json.write_text(json.dumps({**figures, "sides": curves}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
