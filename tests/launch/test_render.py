"""The dry run: a script that reads well and, run by hand, does what a launch does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cockpit.core.records import Access, DataCopy, GroupPlan, QueuePlan, RunPlan, ServerSpec, StagePlan
from cockpit.hosts import LocalHost, layout, shell
from cockpit.launch import queue, render
from cockpit.telemetry.pack import build_agent, build_code
from tests.launch import made

LIMIT_S = 60.0
AGENT, CODE = "a" * 64, "c" * 64
SAY = "import os, sys; print('said', sys.argv[1:], os.environ['WORD']); open(sys.argv[1], 'w').close()"
AWKWARD = 'it\'s $HOME; `id`\n\\ "quoted" ü'


def _group(*stages: StagePlan) -> GroupPlan:
    run = RunPlan(
        run="g.left.r1",
        group="g",
        server="left",
        repeat=0,
        sweep={},
        launcher="process",
        stages=stages,
        config={"runner": {"name": "command"}, "note": AWKWARD + "\nEKVI_END\n"},
    )
    server = ServerSpec(name="left", python=sys.executable, env={"WORD": AWKWARD})
    q = QueuePlan(key="k+1", address="local", workdir=None, slot="default", slots=1, cooldown_s=0.0, runs=(run,))
    return GroupPlan(group="g", profile="p", overrides=(), servers={"left": server}, queues=(q,))


COMMAND = StagePlan(stage="train", argv=(sys.executable, "-c", SAY, "${OUT_DIR}/made", AWKWARD))
MODULE = StagePlan(stage="train", module_args=("-m", "runners", "--config", "${RUN_DIR}/config.json"))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A work folder with awkward letters; what a test leaves running there is ended."""
    folder = str(tmp_path / "the work")
    monkeypatch.setenv("EKVI_WORKDIR", folder)
    yield folder
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in word for word in process.info["cmdline"] or ()):
            process.kill()


def test_the_script_is_one_that_a_shell_takes() -> None:
    script = render(_group(COMMAND, MODULE), agent=AGENT, code=CODE)
    subprocess.run(["sh", "-n"], input=script, text=True, timeout=LIMIT_S, check=True)


def test_the_uploads_stand_in_it_and_only_those_that_are_needed() -> None:
    command, module = (render(_group(stage), agent=AGENT, code=CODE) for stage in (COMMAND, MODULE))
    assert f'-m cockpit.telemetry agent > "$WORK"/bin/agent-{"a" * 16}.pyz' in command
    assert "cockpit.telemetry code" not in command
    assert f'-m cockpit.telemetry code > "$WORK"/code/{"c" * 16}.zip' in module


def test_the_order_is_that_of_a_launch() -> None:
    script = render(_group(MODULE), agent=AGENT, code=CODE)
    marks = [
        "telemetry agent >",
        "telemetry code >",
        "/config.json <<",
        "/launch.json <<",
        "/queue.json <<",
        " start ",
    ]
    at = [script.index(mark) for mark in marks]
    assert at == sorted(at)


def test_a_module_stage_reads_as_one_line() -> None:
    script = render(_group(MODULE), agent=AGENT, code=CODE)
    line = next(line for line in script.splitlines() if "-m runners" in line and line.startswith("#"))
    assert line.endswith("EKVI_STAGE=train " + sys.executable + ' -m runners --config "${RUN_DIR}"/config.json')


def test_files_hold_what_a_launch_would_write(work: str) -> None:
    group = _group(MODULE)
    q = layout.queue_folder(work, group.group, "k+1")
    script = render(group, agent=AGENT, code=CODE)
    # Up to the start, with the two packages replaced by nothing: only what the shell writes is looked at.
    uploads = re.sub(r"^.*-m cockpit\.telemetry .*$", "", script[: script.index("# the agent works")], flags=re.M)
    subprocess.run(["sh"], input=uploads + ")\n", text=True, timeout=LIMIT_S, check=True)
    run = group.queues[0].runs[0]
    assert json.loads(Path(layout.config_file(q, run.run)).read_text()) == run.config
    assert json.loads(Path(layout.queue_file(q)).read_text()) == queue(group.queues[0], group.servers, code=CODE)
    for path in [Path(q), *Path(q).rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_set_work_folder_stands_in_it() -> None:
    group = _group(COMMAND)
    fixed = QueuePlan(
        key="k", address="local", workdir="/data/it's", slot="s", slots=1, cooldown_s=0.0, runs=group.queues[0].runs
    )
    script = render(
        GroupPlan(group="g", profile="p", overrides=(), servers=group.servers, queues=(fixed,)),
        agent=AGENT,
        code=CODE,
    )
    assert "\nWORK='/data/it'\"'\"'s'\n" in script


async def test_run_by_hand_it_runs_the_run_to_its_end(work: str) -> None:
    group = _group(COMMAND)
    q = layout.queue_folder(work, group.group, "k+1")
    run = f"{q}/runs/{group.runs[0].run}"
    script = render(group, agent=build_agent().sha256, code=build_code().sha256)
    host = LocalHost()
    done = await host.run(["sh"], input=script.encode(), timeout=LIMIT_S)
    assert done.rc == 0, done.stderr.decode()
    states = b""
    async with asyncio.timeout(LIMIT_S), aclosing(host.follow({f"{run}/states.jsonl": 0})) as chunks:
        async for chunk in chunks:
            states += chunk.data
            if b'"SUCCEEDED"' in states or b'"FAILED"' in states:
                break
    last = json.loads(states.splitlines()[-1])
    said = Path(run, "spool.log").read_text()
    assert (last["state"], last["exit_code"]) == ("SUCCEEDED", 0), said
    assert said == f"said {[f'{run}/out/made', AWKWARD]} {AWKWARD}\n"
    assert Path(run, "out", "made").exists()


def test_its_comments_do_by_hand_what_the_agent_does(work: str) -> None:
    module = StagePlan(
        stage="check",
        argv=(
            sys.executable,
            "-c",
            "import os, runners; assert '/code/' in runners.__file__; print(os.environ['EKVI_STAGE'])",
        ),
    )
    module = replace(module, env={"PYTHONPATH": "${CODE_DIR}"})
    group = _group(module, COMMAND)
    script = render(group, agent=build_agent().sha256, code=build_code().sha256)
    script = re.sub(r"^#   ", "", script, flags=re.M)
    script = re.sub(r"^.* start .*$", "", script, flags=re.M)
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    out = f"{layout.queue_folder(work, group.group, 'k+1')}/runs/g.left.r1/out"
    assert done.stdout == f"check\nsaid {[f'{out}/made', AWKWARD]} {AWKWARD}\n"
    assert Path(out, "made").exists()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=6))
def test_every_word_means_itself_to_a_shell(words: list[str]) -> None:
    script = f"printf '%s\\0' x {' '.join(shell.fill(w) for w in words)}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=LIMIT_S, check=True)
    assert done.stdout.split(b"\0")[1:-1] == [w.encode() for w in words]


def test_a_place_in_a_word_is_filled_in_by_the_shell() -> None:
    script = f"printf %s {shell.fill('--config=${RUN_DIR}/c $HOME ${OTHER}')}"
    env = os.environ | {"RUN_DIR": "/a b"}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "--config=/a b/c $HOME ${OTHER}"


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
@example("E\x80")
@example("EKVI_EN\xe9\nEKVI_END\nE\xe9")
def test_any_text_is_written_as_it_is(text: str) -> None:
    script = "\n".join(shell.write("/dev/stdout", text + "\nEKVI_END\n")) + "\n"
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, timeout=LIMIT_S, check=True)
    assert done.stdout.decode() == text + "\nEKVI_END\n"


def test_prepared_data_goes_from_server_to_server_through_this_machine() -> None:
    far = made.server(workdir="/w", access=Access(address="gpu1"))
    source = Access(address="ann@gpu0", port=2200)
    copy = DataCopy(source, "/data of ann/cache/data", ("0123/tokens.bin", "0123/manifest.json"), ("s",))
    group = made.group(made.run(made.COMMAND, launcher="process"), far)
    lines = render(group, agent=AGENT, code=CODE, data=copy).splitlines()
    at = lines.index("# prepared data, copied from where it is and compared")
    assert [_words(line) for line in lines[at + 1 : at + 3]] == [
        [
            *("ssh", "-p", "2200", "-o", "ConnectTimeout=15", "--", "ann@gpu0"),
            f"cd '/data of ann/cache/data' && {give} 0123/tokens.bin 0123/manifest.json",
            *("<", "/dev/null", "|", "far"),
            'WORK=/w && Q="$WORK"/groups/g.k && umask 077 && mkdir -p "$WORK"/cache/data && cd "$WORK"/cache/data && '
            + take,
        ]
        for give, take in (("tar -cf -", "tar -xf -"), ("sha256sum", "sha256sum -c --quiet -"))
    ]
    assert lines.index("# each run's resolved configuration, then the queue") > at
    other = replace(copy, servers=("t",))
    assert "prepared data" not in render(group, agent=AGENT, code=CODE, data=other)


def _words(line: str) -> list[str]:
    """The words of a line; of `sh -c SCRIPT` that the far side's shell is given, the script."""
    return [shlex.split(word)[2] if word.startswith("sh -c ") else word for word in shlex.split(line)]
