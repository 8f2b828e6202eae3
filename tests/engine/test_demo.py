"""The recorded duel that ships: it plays anywhere, ends in its verdict and names no machine."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

from tests.demo import TARGET, names_a_machine


def test_the_demo_plays_to_its_verdict_without_the_training_stack() -> None:
    program = (
        "import sys; sys.modules.update({'torch': None, 'megatron': None, 'tokenizers': None})\n"
        "from cockpit.cli import main\n"
        "sys.exit(main(['replay', 'demo', '--speed', '1000000', '--output', 'json']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["state"] == "SUCCEEDED"
    for run in lines[-1]["runs"]:
        assert [e["step"] for e in lines if e.get("run") == run and e["type"] == "iteration"] == list(range(1, 121))


def test_the_demo_is_small_and_names_no_machine() -> None:
    assert TARGET.stat().st_size < 300_000
    with zipfile.ZipFile(TARGET) as archive:
        for name in archive.namelist():
            assert names_a_machine(archive.read(name)) == []
