"""Configuration keys filled into a command: `{seq_length}`, `{output}`, `{training.micro_batch}`.

Only `{name}` in small letters is a key; `{{name}}` stands for the text `{name}`; `${name}` is a shell's and stays,
and so do all other braces, JSON's for instance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cockpit.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from cockpit.config.models import Profile
    from cockpit.core.records import ServerSpec

_KEY = re.compile(r"\{\{([a-z][a-z0-9_.]*)\}\}|(?<!\$)\{([a-z][a-z0-9_.]*)\}")
# Short names of what commands ask for most; all other keys are the configuration's own, dotted.
_SHORT = {
    "seq_length": "training.sequence_length",
    "micro_batch": "training.micro_batch",
    "global_batch": "training.global_batch",
    "learning_rate": "training.learning_rate",
    "warmup_steps": "training.warmup_steps",
    "precision": "training.precision",
    "seed": "training.seed",
    "tensor": "training.parallel.tensor",
    "pipeline": "training.parallel.pipeline",
}
_PLACES = {"output": "${OUT_DIR}", "cache": "${CACHE_DIR}", "run_dir": "${RUN_DIR}"}


def values(config: Profile, spec: ServerSpec, run: str) -> dict[str, str]:
    """All keys that a command may name on this server, with their values as text; keys whose value is None are left
    out, and so are lists.
    """
    body = config.run_config().model_dump(mode="json")
    found = dict(_flat("", {name: body[name] for name in ("model", "data", "training")}))
    found.update({short: found[key] for short, key in _SHORT.items() if key in found})
    found["train_iters"] = str(config.training.iterations)  # also where the length is said in samples
    found.update(_PLACES)
    found.update(run=run, server=spec.name, vendor=spec.vendor, nodes=str(max(1, len(spec.nodes))))
    if spec.gpus is not None:
        found["gpus"] = str(len(spec.gpus))
    return found


def fill(text: str, known: Mapping[str, str], where: str) -> str:
    """`text` with its keys replaced. Raises ConfigError, which names `where` and the nearest key."""

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return "{" + found[1] + "}"
        if found[2] in known:
            return known[found[2]]
        raise ConfigError(
            f"{where}: there is no value for {{{found[2]}}}.",
            hint=did_you_mean(found[2], known) or f"Write {{{{{found[2]}}}}} where the braces are meant as text.",
        )

    return _KEY.sub(value, text)


def _flat(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _flat(f"{prefix}.{key}" if prefix else key, inner)]
    if value is None or isinstance(value, list):
        return []
    return [(prefix, ("true" if value else "false") if isinstance(value, bool) else str(value))]
