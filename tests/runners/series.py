"""Several runs of `python -m runners` in one process, one after the other: the imports cost more than tiny trainings.

`python -m tests.runners.series FOLDER` reads FOLDER/series.json, a list of {"name", "config", "words"}; each run has
FOLDER/NAME/out, and says what it says into FOLDER/NAME/said.RANK, its errors into told.RANK, its exit code into
code.RANK. Several processes go through the list together.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.runners.support import TIMEOUT_S, Place, Result


@dataclass(frozen=True)
class Item:
    """One run: its configuration and its command line beyond it.

    `like` is an output folder that it finds a copy of in its own place, as if it had written it. `killed_at` is a
    pattern of names below its output folder: once there is one, the run is killed; it needs no code then. `then` is
    a module whose `main` is called with the run's folder once it is through.
    """

    name: str
    config: dict[str, Any]
    words: tuple[str, ...] = ()
    like: str | None = None
    killed_at: str | None = None
    then: str | None = None


def play(
    folder: Path, cache: Path, items: list[Item], processes: int = 1, module: str = "tests.runners.series"
) -> dict[str, Result]:
    """Run all, and read what each said: the last rank first, who tells of the iterations. `module` is the program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "series.json").write_text(json.dumps([vars(item) for item in items]))
    place = Place(folder, cache)
    ports = ",".join(str(port) for port in free_ports(len(items)))
    children = []
    for rank in range(processes):
        env = {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        environment = place.environment(EKVI_TEST_PORTS=ports, **(env if processes > 1 else {}))
        command = [sys.executable, "-m", module, str(folder)]
        with (folder / f"own.{rank}").open("w") as own:
            children.append(subprocess.Popen(command, env=environment, stdout=own, stderr=subprocess.STDOUT))
    try:
        for rank, child in enumerate(children):
            assert child.wait(TIMEOUT_S) == 0, (folder / f"own.{rank}").read_text()
    finally:
        for child in children:
            child.kill()
            child.wait()
    return {item.name: result(folder / item.name, processes) for item in items}


def result(own: Path, processes: int) -> Result:
    """What all ranks of a run said."""
    ranks = [processes - 1, *range(processes - 1)]
    said, told = ("".join((own / f"{what}.{rank}").read_text() for rank in ranks) for what in ("said", "told"))
    return Result(int((own / f"code.{ranks[0]}").read_text()), said, told)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def main(folder: Path) -> None:
    """Run the list; with EKVI_TEST_HIP under HIP's names, on GPUs that lie in the host's memory."""
    if os.environ.get("EKVI_TEST_HIP"):
        pretend()
    from megatron.core import parallel_state

    from runners.__main__ import main as runner

    rank = os.environ.get("RANK", "0")
    for number, item in enumerate(json.loads((folder / "series.json").read_text())):
        own = folder / item["name"]
        own.mkdir(exist_ok=True)
        if item["like"] is not None:
            assert rank == "0", "a copy is for one process"
            shutil.copytree(item["like"], own / "out")
        (own / f"config.{rank}.json").write_text(json.dumps(item["config"]))
        os.environ["EKVI_OUT"] = str(own / "out")
        if "RANK" in os.environ:  # a store of its own: two process groups in one would find each other's notes
            os.environ["MASTER_PORT"] = os.environ["EKVI_TEST_PORTS"].split(",")[number]
        words = ["--config", str(own / f"config.{rank}.json"), *item["words"]]
        with (
            (own / f"said.{rank}").open("w") as said,
            (own / f"told.{rank}").open("w") as told,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(told),
        ):
            code = killed(runner, words, own / "out", item["killed_at"]) if item["killed_at"] else runner(words)
            if item["then"]:
                import_module(item["then"]).main(own)
        (own / f"code.{rank}").write_text(str(code))
        parallel_state.destroy_model_parallel()


def killed(runner: Callable[[list[str]], int], words: list[str], out: Path, pattern: str) -> int:
    """Run in a child of this process, and kill it without a warning once `pattern` is there."""
    child = os.fork()
    if child == 0:
        os._exit(runner(words))
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(out.glob(pattern)):
            assert time.monotonic() < deadline, f"no {pattern}"
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended"
    finally:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def pretend() -> None:
    """HIP's names, and a stream in which all that was asked is done."""
    import torch

    from tests.runners import hip

    hip.pretend()
    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _other: None)
    torch.cuda.current_stream = lambda *_device: stream
    torch.cuda.stream = contextlib.nullcontext


if __name__ == "__main__":
    from runners.__main__ import leave

    main(Path(sys.argv[1]))
    leave(0)
