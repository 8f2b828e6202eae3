"""Brings micro batches to the device, one ahead: reading samples must not be in a step's time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

AHEAD = 2  # micro batches that are ready before they are asked for


def fed(batches: Iterator[tuple[Any, ...]], device: torch.device) -> Iterator[tuple[Any, ...]]:
    """The same tuples of tensors on `device`; on the host as they are, read when asked for."""
    return batches if device.type == "cpu" else _ahead(batches, device)


def _ahead(batches: Iterator[tuple[Any, ...]], device: torch.device) -> Iterator[tuple[Any, ...]]:
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="feed") as reader:

        def ask() -> None:
            waiting.append(reader.submit(_pinned, batches))

        try:
            for _ in range(AHEAD):
                ask()
            while (held := waiting.popleft().result()) is not None:
                ask()
                yield tuple(tensor.to(device, non_blocking=True) for tensor in held)
        finally:
            for future in waiting:
                future.cancel()


def _pinned(batches: Iterator[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The next micro batch in memory that a copy to the device need not wait for; None at the end."""
    held = next(batches, None)
    return held and tuple(tensor.pin_memory() for tensor in held)
