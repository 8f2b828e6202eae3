"""A resolved profile becomes a plan: pure data that launchers render and the store keeps."""

from __future__ import annotations

from cockpit.plan.plan import default_repeats, make_plan

__all__ = ["default_repeats", "make_plan"]
