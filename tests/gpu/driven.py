"""A source in a process of its own, as the agent has it: asked line by line, its standard output led away."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWER_S = 20.0
_PROGRAM = """
import importlib, json, os, sys
told = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
module, kind, args = json.loads(sys.argv[1])
from runners.agent.gpu.source import Gone, SourceError
source = getattr(importlib.import_module(module), kind)(*args)
for line in sys.stdin:
    try:
        answer = {"ok": getattr(source, line.strip())()}
    except Gone as error:
        answer = {"gone": error.text}
    except SourceError as error:
        answer = {"code": error.code, "text": error.text, "mend": error.mend}
    if "ok" in answer:
        answer.update(devices=source.devices, known=[r.known for r in source.reasons], version=source.version)
    told.write(json.dumps(answer) + "\\n")
"""


class Driven:
    """A source of `runners.agent.gpu.<module>`; close it."""

    def __init__(self, module: str, kind: str, env: Mapping[str, str], *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps([f"runners.agent.gpu.{module}", kind, args])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env), text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.devices: list[dict[str, Any]] = []
        self.known: list[dict[str, list[str]]] = []
        self.version: str | None = None

    def try_to(self, do: str) -> dict[str, Any]:
        """{"ok": answer}, {"gone": text} or {"code", "text", "mend"}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(do + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            raise AssertionError(f"no answer to {do}: {self._process.communicate()[1]}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def ask(self, do: str) -> Any:
        """The answer of a call that works."""
        answer = self.try_to(do)
        assert "ok" in answer, answer
        self.devices, self.known, self.version = answer["devices"], answer["known"], answer["version"]
        return answer["ok"]

    def close(self) -> str:
        """End it; its standard error and what it printed."""
        self._process.stdin.close() if self._process.stdin else None
        self._process.stdin = None
        _, err = self._process.communicate(timeout=ANSWER_S)
        return err
