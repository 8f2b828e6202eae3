"""Renders what metrics returns, for a terminal, as markdown and as JSON; computes nothing.

`text(comparison)`, `markdown(comparison)`, `as_json(document)` and `summary_text(summary)`. rich loads on first use.
"""

from __future__ import annotations

from cockpit.report.document import as_json
from cockpit.report.markdown import markdown
from cockpit.report.terminal import summary_text, text

__all__ = ["as_json", "markdown", "summary_text", "text"]
