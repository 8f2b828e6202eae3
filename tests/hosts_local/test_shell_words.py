"""Commands that a user is given to copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from cockpit.core.records import Access
from cockpit.hosts.shell import ssh


def test_the_command_that_logs_in_by_hand_takes_the_way_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert ssh(Access(address="me@box")) == ["ssh", "me@box"]
    access = Access(address="box", port=2222, identity="~/.ssh/other", config="/etc/a config")
    assert ssh(access, "name") == [
        *("ssh", "-F", "/etc/a config", "-i", str(Path.home() / ".ssh/other"), "-p", "2222", "name"),
    ]
