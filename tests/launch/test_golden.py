"""The exact words of `create`, a file a case: what changes here changes what runs on people's servers.

`EKVI_GOLDEN=write` writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cockpit.core.records import ContainerFacts, RunPlan, ServerSpec
from tests.launch.made import COMMAND, FACTS, argv_of, run, server

GOLDEN = Path(__file__).parent / "golden"
PODMAN = replace(FACTS, engine="podman", cdi=True)
FULL: dict[str, Any] = {
    "network": "host", "ipc": "private", "shm": "32g", "memory": "512g", "user": "self", "workdir": "/work",
    "entrypoint": ["env", "A=${OUT_DIR}"], "shell": "/bin/bash", "init": False, "privileged": True, "read_only": True,
    "cap_add": ["SYS_PTRACE"], "devices": ["/dev/fuse"], "group_add": ["27"], "security_opt": ["apparmor=unconfined"],
    "ulimits": {"memlock": None, "nofile": "65536:65536"}, "extra": ["--cpus", "8"], "hf_cache": "/big/hf",
}  # fmt: skip
FILES = {"conf": f"{'f' * 16}/conf"}
SERVER: dict[str, Any] = {
    "env": {"NCCL_DEBUG": "WARN", "NOTE": "two\nlines; $(id) 'q'"},
    "mounts": {"~/data set": "/sets", "/a,b:c": "/d:ro"},
    "files": {"conf": "/etc/conf"},
    "secrets": ("HF_TOKEN", "WANDB_API_KEY"),
}


def _vendors(engine: str, facts: ContainerFacts) -> dict[str, tuple[RunPlan, ServerSpec]]:
    out: dict[str, tuple[RunPlan, ServerSpec]] = {}
    for vendor in ("nvidia", "amd", "cpu"):
        here = server(facts, vendor=vendor)
        out[f"{vendor}-{engine}"] = run(), here
        out[f"{vendor}-{engine}-command"] = run(COMMAND), here
        if vendor != "cpu":
            out[f"{vendor}-{engine}-subset"] = run(), replace(here, gpus=(0, 2))
    return out


CASES: dict[str, tuple[RunPlan, ServerSpec]] = {
    **_vendors("docker", FACTS),
    **_vendors("podman", PODMAN),
    "amd-podman-rootless": (run(user="self"), server(replace(PODMAN, rootless=True), vendor="amd")),
    "amd-docker-full": (run(**FULL), server(vendor="amd", gpus=(1,), **SERVER)),
    "nvidia-docker-full": (run(**FULL), server(replace(FACTS, infiniband=True), vendor="nvidia", **SERVER)),
    "nvidia-docker-cdi": (run(), server(replace(FACTS, cdi=True), vendor="nvidia", gpus=(3, 5))),
    "cpu-docker-not-asked": (run(hf_cache=None, ipc=None), server(None)),
}


def lines(argv: list[str]) -> str:
    """A word a line, a flag with its value; what does not read as it is stands in Python's quotes."""
    out: list[str] = []
    for word in argv:
        shown = word if word and word.isprintable() and word == word.strip() else repr(word)
        follows = out and out[-1].startswith("--") and " " not in out[-1] and not word.startswith("--")
        if follows and out[-1] not in ("--init", "--privileged", "--read-only"):
            out[-1] += f" {shown}"
        else:
            out.append(shown)
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_words_of_create(name: str) -> None:
    found = lines(argv_of(*CASES[name], FILES))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("EKVI_GOLDEN") == "write":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)
