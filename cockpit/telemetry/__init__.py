"""The agent on a server: packed, put there, started, asked and stopped."""

from __future__ import annotations

from cockpit.telemetry.pack import Package, build_agent, build_code

__all__ = ["Package", "build_agent", "build_code"]
