"""Whether a comparison was fair: every difference between the sides, how much it matters and why.

blocking: the sides did not do the same work, or not alone. warning: the same work under other conditions that may
matter. info: what tells the sides apart anyway (the machine, its driver stack), or what was swept on purpose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.metrics.containers import container_facts, image_difference
from cockpit.metrics.hardware import hardware_differences
from cockpit.metrics.sides import RunFacts, Side

ORDER = ("blocking", "warning", "info")
THROTTLED_FROM = 0.01  # share of the time
_ABSENT = "(not set)"

# First match wins. None: says nothing about fairness (where and when a run was, how it looked).
_RULES: tuple[tuple[str, str | None, str], ...] = (
    (r"(model|data|training|runner)\.name$", "info", "a name; what it stands for is compared by itself"),
    (r"runner$", "blocking", "another program"),
    (r"runner\.(log_level|log_format|artifacts)$", None, ""),
    (r"runner\.(report_json|track|merge|keep|save|save_every|log_batches)$", None, ""),
    (
        r"runner\.(model|model_local_dir|tokenizer_local_dir|revision|local_files_only|data|validation)$",
        "info",
        "where it lies; what it holds is compared by itself",
    ),
    (r"runner\.(strategy|attention|gradient_checkpointing)$", "warning", "other code for the same work"),
    (r"runner\.declares\.", "blocking", "the programs are declared to train something else"),
    (r"runner\.env\.", "warning", "an environment variable set otherwise"),
    (r"runner\.", "blocking", "the program does other work"),
    (r"model\.description$", None, ""),
    (
        r"model\.(weights|revision)$",
        "warning",
        "other first weights, or the same elsewhere: losses may part, speed not",
    ),
    (r"model\.", "blocking", "another model"),
    (r"built\.", "blocking", "the model that was built is another"),
    (r"prepared\.", "blocking", "the tokens read are not the same"),
    (r"data\.(workers|offline)$", "info", "how the tokens were made, not which"),
    (r"data\.paths$", "info", "where the files lie; the tokens are compared by themselves"),
    (r"data\.", "blocking", "other data"),
    (r"training\.(backend|device)$", "info", "the device family, which is what is compared"),
    (r"training\.parallel\.", "warning", "the same work, divided otherwise over the processes"),
    (r"training\.threads$", "warning", "another number of CPU threads a process"),
    (r"training\.seed$", "warning", "other random numbers: losses may part, speed should not"),
    (r"training\.train_iters$", "warning", "another length of run, and so another learning-rate schedule"),
    (r"training\.(evaluate|eval_interval|eval_iters)$", "warning", "other pauses to validate; they count in no step"),
    (r"training\.(kernels|libraries)\.", "warning", "other kernels for the same work"),
    (r"training\.recompute$", "warning", "the same result, with more work and less memory on one side"),
    (r"training\.(overlap|distributed_optimizer)$", "warning", "the same work, divided otherwise over the processes"),
    (r"training\.(checkpoint\.|stop_on_nan$)", "warning", "other pauses to save; they count in no step"),
    (r"training\.", "blocking", "the training does other work a step"),
    (r"resumed_from$", "warning", "goes on from a checkpoint: later steps of its training, at other learning rates"),
    (r"code_sha256$", "warning", "the runners' code differs"),
    (r"env\.(\w+_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL)$", "info", "which GPUs; how many is compared by itself"),
    (r"env\.\w+_(VERSION|HOME|PATH|ROOT|ARCH|ARCH_LIST)$", "info", "what is installed where, and for which devices"),
    (r"env\.", "warning", "an environment variable set otherwise"),
    (r"packages\.[^.]+\.build$", "info", "the build for its device family"),
    (r"packages\.(nvidia|cuda|rocm|hip|amd|pytorch-triton)", "info", "a package of its device family"),
    (r"packages\.", "warning", "another version of a package"),
    (r"runner_said\.(python|implementation|megatron_core)$", "warning", "another version"),
    (r"runner_said\.torch\.(cuda|hip|git)$", "info", "the build for its device family"),
    (r"runner_said\.torch\.", "warning", "torch was built otherwise"),
    (r"runner_said\.(threads|interop_threads)$", "warning", "another number of threads"),
    (r"runner_said\.world$", "warning", "another number of processes"),
    (r"runner_said\.precision$", "blocking", "another precision"),
    (r"runner_said\.(attention|transformer_impl|kernels)", "warning", "other kernels for the same work"),
    (r"runner_said\.(backend|collective)$", "info", "of its device family"),
    (r"host\.governor$", "warning", "another CPU frequency governor"),
    (r"host\.(kernel|os|python)$", "info", "another system"),
    (r"host\.", "info", "another machine"),
    (r"launcher$", "warning", "started another way"),
    (r"container\.(engine|version)$", "info", "another container engine"),
    (r"container\.(nvidia|devices|group_add|cap_add|security_opt)$", "info", "how a container gets its devices"),
    (r"container\.(user|workdir|entrypoint)$", "info", "of its image"),
    (r"container\.", "warning", "a container with other settings"),
    (r"gpus$", "warning", "another number of GPUs"),
    (r"nodes$", "warning", "another number of nodes"),
    (r"cockpit$", "info", "another version of the cockpit"),
    (r"succeeded$", "warning", "nothing that it did could be compared"),
    (r"throttling$", "warning", "a GPU was slowed by power, heat or hardware for part of the time"),
    (r"config\.(theme|servers?|repeats|profile|pricing|name|stage)(\.|$)", None, ""),
    (r"runner_said\.(run|smoke|host|pid|argv|time|date|started|cwd|path|device_name|gpu|cpu)(\.|$)", None, ""),
    (r"runner_said\.", "info", "as the runner said"),
    (r"config\.", "warning", "set otherwise"),
)
_COMPILED = tuple((re.compile(pattern), severity, why) for pattern, severity, why in _RULES)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH", re.IGNORECASE)
_OWN_ENV = re.compile(r"EKVI_|MASTER_(ADDR|PORT)$|RANK$|LOCAL_RANK$|WORLD_SIZE$|PWD$|HOSTNAME$")
_DIVIDED = ("runner.batch", "runner.grad_accum", "runner.processes")
_GROUPS = ("model", "data", "training", "runner")
_TWINS = tuple(
    (f"training.{what}_samples", f"training.{what}_{steps}")
    for what, steps in (("train", "iters"), ("warmup", "steps"), ("decay", "steps"))
)


def parity(sides: Sequence[Side], *, strict: bool = False) -> dict[str, Any]:
    """The `parity` object of ekvi.compare/1: verdict and differences, the worst first.

    fair: nothing but info. labelled: something to know beside the figures. refused: `strict`, and the sides did not
    do the same work.
    """
    # Of a side none of whose runs succeeded only what was planned is known: it says nothing by its silence.
    facts = {s.name: [_facts(r) for r in s.counted or s.runs] for s in sides}
    silent = {s.name for s in sides if not s.counted}
    swept = _swept(sides)
    keys = dict.fromkeys(key for runs in facts.values() for one in runs for key in one)
    found = [d for key in keys if (d := _difference(key, facts, swept, silent)) is not None]
    found += [*_unfinished(sides), *_imported(sides), *_throttling(sides), *hardware_differences(sides)]
    image = image_difference(sides)
    found += [] if image is None else [image]
    found.sort(key=lambda d: (ORDER.index(d["severity"]), d["key"]))
    worst = {d["severity"] for d in found}
    verdict = "refused" if strict and "blocking" in worst else "labelled" if worst - {"info"} else "fair"
    return {"verdict": verdict, "differences": found}


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    """Nested mappings as dotted keys; lists as JSON text, so that they can be compared and shown."""
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, inner in value.items():
            out.update(_flat(f"{prefix}.{key}" if prefix else str(key), inner))
        return out
    return {prefix: json.dumps(value) if isinstance(value, (list, tuple)) else value}


def _facts(run: RunFacts) -> dict[str, Any]:
    """All that may be compared of one run, by dotted key; unknown values are left out."""
    config, known = run.meta.get("config") or {}, run.provenance
    out: dict[str, Any] = {}
    for key, value in config.items():
        flat = _flat(key if key in _GROUPS else f"config.{key}", value)
        out.update({k: "null" if v is None else v for k, v in flat.items()})  # said to be none is not unknown
    if not any(key in (run.meta.get("sweep") or {}) for pair in _TWINS for key in pair):
        _in_iterations(out)
    runner = out.pop("runner.name", None)
    out.update({"runner": runner, "launcher": (run.meta.get("plan") or {}).get("launcher")})
    out.update(_flat("prepared", {k: v for k, v in (known.get("data") or {}).items() if not _is_place(k)}))
    out.update(_built(known.get("model") or {}, out))
    if out.get("built.batch_of_all"):  # how a fine-tuning's step is divided over processes is no other work
        swept = any(key in (run.meta.get("sweep") or {}) for key in _DIVIDED)
        out = {k: v for k, v in out.items() if k not in (("built.batch_of_all",) if swept else _DIVIDED)}
    said = dict(known.get("runner") or {})
    out.update(_packages(said.pop("packages", None) or known.get("packages") or {}, said))
    said_env = said.pop("env", None) or known.get("env") or {}
    out.update(_environment(run.meta, said_env))
    out.update(_flat("runner_said", said))
    out.update(_flat("host", known.get("host") or {}))
    out.update({k: known.get(k) for k in ("code_sha256", "cockpit")})
    out.update(_flat("", container_facts(run)))
    out["resumed_from"] = (known.get("resumed") or {}).get("step", 0)
    out["gpus"] = (run.summary.get("gpu") or {}).get("count")
    if run.state == "SUCCEEDED":  # what was refused never had its nodes
        out["nodes"] = len((run.meta.get("handle") or {}).get("nodes") or ()) or 1
    return {k: v for k, v in out.items() if v is not None}


def _in_iterations(out: dict[str, Any]) -> None:
    """A length, warm-up and decay counted in samples are told in iterations, as the other sides may count them."""
    batch = out.get("training.global_batch")
    for samples, steps in _TWINS:
        count = out.pop(samples, "null")
        if isinstance(count, int) and isinstance(batch, int) and batch > 0:
            part = count % batch and steps != "training.train_iters"  # what is left of a batch is not trained
            out[steps] = count / batch if part else count // batch


def _is_place(key: str) -> bool:
    """Whether a key of the `data` diagnostic says where the tokens lie, not what they are."""
    return key in ("path", "folder", "prefix", "cached", "seconds", "key")


def _built(model: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the runner built, where the configuration does not already say the same."""
    same = {
        "seq_length": "training.sequence_length",
        "global_batch": "training.global_batch",
        "micro_batch": "training.micro_batch",
    }
    names = ("parameters", "padded_vocab", "trainable", "weights", "batch_of_all", *same)
    return {f"built.{n}": model.get(n) for n in names if same.get(n) not in config}


def _packages(packages: Mapping[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """Versions by package; torch's local part (+cpu, +cu130, +rocm7) apart, because vendors cannot share it.

    Versions that the runner also names outside the list are taken from `said`, so that they are not told twice.
    """
    versions = {re.sub(r"[-_.]+", "-", str(name)).lower(): str(v) for name, v in packages.items()}
    torch = said.get("torch")
    if isinstance(torch, Mapping):
        said["torch"] = {k: v for k, v in torch.items() if k != "version"}
        torch = torch.get("version")
    elif torch is not None:
        del said["torch"]
    if torch:
        versions["torch"] = str(torch)  # of the module itself; a package's metadata may leave out the local part
    out: dict[str, Any] = {}
    for name, version in versions.items():
        public, _, local = version.partition("+")
        out[f"packages.{name}"] = public
        if local:
            out[f"packages.{name}.build"] = local
        if name != "torch":
            said.pop(name.replace("-", "_"), None)
    return out


def _environment(meta: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Variables that the runner said it was given, and those the plan sets; secrets by presence only."""
    env: dict[str, Any] = {}
    for stage in (meta.get("plan") or {}).get("stages") or ():
        env.update(stage.get("env") or {})
    env.update(said)  # what the runner saw is what counted
    return {
        f"env.{name}": "(set)" if _SECRET.search(name) else value
        for name, value in env.items()
        if not _OWN_ENV.match(name)
    }


def _swept(sides: Sequence[Side]) -> set[str]:
    """Keys that the sides' one group swept on purpose; across groups nothing counts as swept."""
    runs = [r for s in sides for r in s.counted]
    if len({r.meta.get("group") for r in runs}) != 1:
        return set()
    return {key for r in runs for key in (r.meta.get("sweep") or {})}


def _rule(key: str) -> tuple[str | None, str]:
    for pattern, severity, why in _COMPILED:
        if pattern.match(key):
            return severity, why
    return "info", "recorded with the run"


def _difference(
    key: str, facts: Mapping[str, list[dict[str, Any]]], swept: set[str], silent: set[str]
) -> dict[str, Any] | None:
    """What differs under `key` between or within the sides, or None; what `silent` sides do not say is nothing."""
    severity, why = _rule(key)
    if severity is None:
        return None
    told = {name: _values(key, runs) for name, runs in facts.items()}
    seen = {name: values for name, values in told.items() if values or name not in silent}
    known = [v for v in seen.values() if v]
    alike = len(known) == len(seen) and len({json.dumps(v, default=str) for v in known}) <= 1
    several = bool(known) and len(known[0]) > 1
    if alike and (
        not several or key == "training.seed"
    ):  # repeats may have seeds of their own, the same on each side
        return None
    mixed = [name for name, values in seen.items() if len(values) > 1]
    absent = [name for name, values in seen.items() if not values]
    if any(key == one or key.startswith(f"{one}.") for one in swept):
        severity, why = "info", "swept on purpose in this group"
    elif absent and key.startswith("env."):
        why = "set on one side only"
    elif absent and key.startswith("container."):
        return None  # one side was in no container: the launcher tells that
    elif absent and key.startswith("packages.") and all(_lists_packages(facts[name]) for name in absent):
        why = "a package on one side only"
    elif absent:
        severity = "warning" if severity == "blocking" else severity
        why = f"not recorded for {', '.join(absent)}: it cannot be said whether it was the same"
    elif mixed:
        severity = "warning" if alike or (severity == "info" and not key.startswith("host.")) else severity
        why = f"the runs of {', '.join(mixed)} differ among themselves; {why}"
    return {"key": key, "values": {n: _shown(key, v) for n, v in told.items()}, "severity": severity, "why": why}


def _lists_packages(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a side recorded its packages; torch alone is named by the runner anyway."""
    return any(key.startswith("packages.") and not key.startswith("packages.torch") for run in runs for key in run)


def _values(key: str, runs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The distinct values of a side's runs, sorted; a run without one counts where the others have it."""
    found = [run.get(key, _ABSENT) for run in runs]
    distinct = {json.dumps(v, sort_keys=True, default=str): v for v in found}
    if set(distinct) <= {json.dumps(_ABSENT)}:
        return []
    return [distinct[k] for k in sorted(distinct)]


def _shown(key: str, values: list[Any]) -> Any:
    if not values:
        return _ABSENT if key.startswith("env.") else None
    return values[0] if len(values) == 1 else " | ".join(str(v) for v in values)


def _unfinished(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """One warning where a side has no run that succeeded: that nothing differs says nothing then."""
    without = [s.name for s in sides if not s.counted]
    if not without or len(sides) < 2:
        return []
    severity, why = _rule("succeeded")
    have = "has" if len(without) == 1 else "have"
    told = f"{', '.join(without)} {have} no run that succeeded: {why}"
    values = {s.name: len(s.counted) for s in sides}
    return [{"key": "succeeded", "values": values, "severity": severity, "why": told}]


def _imported(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """A log alone does not say what was configured: equal work is then an assumption."""
    found = {s.name: any("imported" in (r.meta.get("provenance") or {}) for r in s.runs) for s in sides}
    if len(sides) < 2 or not any(found.values()):
        return []
    values = {name: "an imported log" if yes else "recorded" for name, yes in found.items()}
    why = "a log does not tell what was configured: that the sides did the same work is not known"
    return [{"key": "config", "values": values, "severity": "warning", "why": why}]


def _throttling(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """One warning where any side was throttled for more than a hundredth of its time."""
    seen = {s.name: [v for r in s.counted if (v := r.metric("throttled_ratio")) is not None] for s in sides}
    worst = {name: max(values, default=None) for name, values in seen.items()}
    if not any(v is not None and v > THROTTLED_FROM for v in worst.values()):
        return []
    severity, why = _rule("throttling")
    reasons = [f"{s.name}: {note}" for s in sides for r in s.counted if (note := _reason(r, worst[s.name]))]
    why += f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""
    return [{"key": "throttling", "values": worst, "severity": severity, "why": why}]


def _reason(run: RunFacts, worst: float | None) -> str | None:
    """What slowed the run that was slowed the most of its side, as its summary says."""
    value = run.metric("throttled_ratio")
    return run.reason("throttled_ratio") if value and value == worst and value > THROTTLED_FROM else None
