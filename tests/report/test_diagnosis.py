"""What doctor says on a terminal."""

from __future__ import annotations

from cockpit.report.diagnosis import diagnosis_text

CLEAN = "ssh cuda-host 'python3 /home/someone/.local/state/ekvi-cockpit/cuda-host/bin/agent-9d20.pyz clean /home/x/y'"
LOOK = "`ssh -F /some/long/folder/of/keys/config -i /another/long/folder/key cuda-host`"


def test_a_command_to_copy_stays_in_one_line_on_a_narrow_terminal() -> None:
    findings = [
        {"check": "agents", "level": "warn", "text": "done, not fetched.", "mend": f"`fetch g`; or: {CLEAN}"},
        {
            "check": "login",
            "level": "fail",
            "text": "no.",
            "mend": f"Check the user and the key with {LOOK}; or else.",
        },
    ]
    server = {"name": "s", "address": "a", "nodes": [], "vendor": "nvidia", "level": "fail", "findings": findings}
    lines = diagnosis_text({"servers": [server], "verdict": "No.", "fit": False}, width=60, color=False).splitlines()
    for command in (CLEAN, LOOK):
        assert [line for line in lines if command in line]
    assert all(len(line) <= 60 for line in lines if CLEAN not in line and LOOK not in line)
