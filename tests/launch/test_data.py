"""Whatever a profile says reaches the server as data: nothing in it is read by a shell, an engine or ssh.

Each value goes all the way: YAML, configuration, plan, launch. Then it is compared in queue.json, and in what
programs get that stand in for ssh and docker while a real `sh` runs the dry run's script.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from cockpit.config import load
from cockpit.core.records import ContainerFacts, GroupPlan
from cockpit.hosts import layout
from cockpit.launch import queue, render
from cockpit.plan import make_plan
from tests.config.helpers import write

LIMIT_S = 60.0
AWKWARD = "a b'c\"d;e$(id)`id`\nf\\ $HOME,g=h:i #j *"
# Braces are the profile's own grammar; a NUL can be in no word, and is refused.
VALUE = st.text(st.characters(codec="utf-8", exclude_characters="\0{}"), min_size=1, max_size=12) | st.sampled_from(
    [AWKWARD, "$(touch /tmp/x)", "-rf", "'", '"', "\n", ";", "EKVI_END\nid", "EKVI_FAR", "#   id", "%s", "\\", "~"]
)
PATH = VALUE.filter(lambda v: not {".", ".."} & set(v.split("/")) and "\r" not in v).map(lambda v: "/p" + v)
# Each example starts a dozen programs: one that fails is shown as it is, since to shrink it takes minutes.
PHASES = (Phase.explicit, Phase.generate)
MANY = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
PLAIN = re.compile(r"/+")

DOCKER = """#!/bin/sh
printf '%s\\0' "$@" >> "$STUBS/docker.log"; printf '\\0\\0' >> "$STUBS/docker.log"
[ "$1" = start ] || exit 0
for p in pipe.*; do : > "$p"; done
"""
SSH = """#!/bin/sh
printf '%s\\0' "$@" >> "$STUBS/ssh.log"; printf '\\0\\0' >> "$STUBS/ssh.log"
for last; do :; done
exec sh -c "$last"
"""
PROGRAM = """#!/bin/sh
printf '%s\\0' "$NAMED" "$@" > "$STUBS/program.log"
"""


def _plan(server: dict[str, Any], argv: list[str], launcher: dict[str, Any]) -> GroupPlan:
    """The plan of a profile with these values, written as a user would write it: all texts in quotes."""
    profile = {
        "servers": {"s": {"vendor": "cpu", **server}},
        "runner": {"name": "command", "argv": argv},
        "launcher": launcher,
    }
    write("awkward.yaml", yaml.safe_dump(profile, default_style='"', allow_unicode=True).replace("!!int ", ""))
    return make_plan(load("awkward"), group="g", repeats=1)


def _container(plan: GroupPlan) -> GroupPlan:
    facts = ContainerFacts(home="/home/ann", entrypoint=("/entry point",))
    return replace(plan, servers={"s": replace(plan.servers["s"], container=facts)})


def _words(log: Path) -> list[list[str]]:
    """The calls that a stand-in noted."""
    calls = log.read_bytes().decode().split("\0\0\0")[:-1] if log.exists() else []
    return [call.split("\0") for call in calls]


def _by_hand(plan: GroupPlan, folder: Path, files: dict[str, str]) -> Path:
    """Run the dry run's script, the agent's part done by hand, with programs of ours in place of ssh and docker."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name, text in {"docker": DOCKER, "ssh": SSH, "program": PROGRAM}.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    script = render(plan, agent="a" * 64, code="c" * 64, files=files)
    script = re.sub(rf"{re.escape(shlex.quote(sys.executable))} -m cockpit\.\S+ ", "printf %s ", script)
    script = re.sub(r"^#   ", "", script, flags=re.M).replace(" -m zipfile -e ", " ")
    env = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "STUBS": str(stubs), "HOME": str(folder)}
    done = subprocess.run(
        ["sh"], input=script.encode(), env=env, capture_output=True, timeout=LIMIT_S, cwd=folder, check=False
    )
    assert done.returncode == 0, (done.stderr.decode(), script)
    return stubs


def _options(words: list[str], flag: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == flag]


@MANY
@given(env=VALUE, source=PATH, target=PATH, argv=VALUE, entry=VALUE, extra=VALUE, cache=PATH, cwd=PATH, work=PATH)
@example(AWKWARD, "/p//x/", "/q//y/", AWKWARD, "~", "~", "/p//c", "/p//d/", "/p//w")
@example(*([AWKWARD, f"/p{AWKWARD}", f"/q{AWKWARD}", AWKWARD, AWKWARD, AWKWARD, "/p,", "/p'", "/p'\n;"]))
def test_a_container_gets_every_word_as_it_is(
    tmp_path_factory: Any, env: str, source: str, target: str, argv: str, entry: str, extra: str, cache: str,
    cwd: str, work: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("far")
    work = str(folder) + work.replace("\n", "").replace('"', "")
    server = {
        "address": "ann@gpu1", "ssh": {"identity": source, "config": cache}, "env": {"NAMED": env},
        "mounts": {source: target}, "files": {argv: f"{target}-file"}, "workdir": work,
        "python": str(folder / "stubs/program"),
    }  # fmt: skip
    launcher = {
        "kind": "container", "image": "example/train:1", "entrypoint": ["/entry", entry], "workdir": cwd,
        "hf_cache": cache, "extra": ["--annotation", extra],
    }  # fmt: skip
    plan = _container(_plan(server, ["./train", argv, "{output}/x"], launcher))
    files = {argv: f"{'f' * 16}/name, of a file"}
    document = queue(plan.queues[0], plan.servers, code="c" * 64, files=files)
    created = document["runs"][0]["stages"][0]["argv"]
    assert created[created.index("ekvi") + 1 :] == ["/entry", entry, "./train", argv, "/ekvi/out/x"]
    assert f"NAMED={env}" in _options(created, "--env")
    assert _options(created, "--annotation") == [extra]
    assert _options(created, "--workdir") == [cwd]
    stubs = _by_hand(plan, folder, files)
    q = layout.queue_folder(work, "g", plan.queues[0].key)
    assert json.loads(Path(layout.queue_file(q)).read_text()) == document
    filled = {
        "RUN_DIR": f"{q}/runs/{plan.runs[0].run}", "OUT_DIR": f"{q}/runs/{plan.runs[0].run}/out",
        "WORK_DIR": work, "CACHE_DIR": f"{work}/cache", "FILES_DIR": f"{work}/files",
    }  # fmt: skip
    expected = [re.sub(r"\$\{(\w+)\}", lambda m: filled.get(m[1], m[0]), word) for word in created]
    calls = {call[0]: call for call in _words(stubs / "docker.log")}
    assert calls["create"] == expected[1:]
    assert calls["image"][-1] == "example/train:1"
    for call in _words(stubs / "ssh.log"):
        assert call[:-1] == ["-F", cache, "-i", source, "-o", "ConnectTimeout=15", "--", "ann@gpu1"]


@MANY
@given(env=VALUE, argv=VALUE, local=VALUE, work=PATH)
@example(*([AWKWARD] * 3), "/p'\"$(id)")
def test_a_process_gets_every_word_as_it_is(
    tmp_path_factory: Any, env: str, argv: str, local: str, work: str
) -> None:
    folder = tmp_path_factory.mktemp("here")
    work = str(folder) + work.replace("\n", "")
    program = str(folder / "stubs/program")
    link = PLAIN.sub("/", "l" + argv.strip("/"))
    link = "l" if {".", ".."} & set(link.split("/")) else link
    server = {"env": {"NAMED": env}, "workdir": work, "python": program, "files": {local: link}}
    plan = _plan(server, [program, argv, "{output}/x"], {"kind": "process"})
    files = {local: f"{'f' * 16}/it's"}
    document = queue(plan.queues[0], plan.servers, code="c" * 64, files=files)
    run = document["runs"][0]
    assert run["stages"][0]["argv"] == [program, argv, "${OUT_DIR}/x"]
    assert run["stages"][0]["env"]["NAMED"] == env
    assert list(run["links"]) == [link]
    stubs = _by_hand(plan, folder, files)
    q = layout.queue_folder(work, "g", plan.queues[0].key)
    assert json.loads(Path(layout.queue_file(q)).read_text()) == document
    said = (stubs / "program.log").read_bytes().decode().split("\0")[:-1]
    assert said == [env, argv, f"{q}/runs/{run['run']}/out/x"]
    assert (Path(q, "runs", run["run"]) / link).readlink() == Path(f"{work}/files/{'f' * 16}/it's")
