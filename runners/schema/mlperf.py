"""What an MLPerf log says beside the training's own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runners.schema.base import Flag, Positive, Strict

_Said = Annotated[str, Field(min_length=1)]


class MLPerf(Strict):
    """The `:::MLLOG` lines of a run: who submits, and where it ran.

    `platform` None is told from the devices. `clear_caches` drops the kernel's page cache before the start, as the
    rules want of a submission: it needs root, and slows whatever else runs there; `cache_clear` in the log says
    whether it was done. `log_every` is the number of steps between two training losses in it.
    """

    benchmark: Literal["llama2_70b_lora"] = "llama2_70b_lora"
    division: Literal["closed", "open"] = "closed"
    organization: _Said = "unofficial"
    platform: _Said | None = None
    status: Literal["onprem", "cloud", "research"] = "onprem"
    contact_name: str | None = None
    contact_email: str | None = None
    clear_caches: Flag = False
    log_every: Positive = 10
