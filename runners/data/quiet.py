"""What the training stack says on import that no reader of a run's log needs."""

from __future__ import annotations

import logging
import warnings

# Module and what it warns of; each names a choice that is recorded in the run's provenance anyway.
_KNOWN = (
    (r"megatron\.core", r"Transformer Engine and Apex are not installed"),
    (r"megatron\.core", r"Apex is not installed"),
    (r"megatron\.", r".*is deprecated"),
    (r"torch\.", r".*is deprecated"),
    (r"torch\.utils\.data", r"'pin_memory' argument is set as true"),
)


def silence() -> None:
    """Drop the known warnings and info lines of torch and megatron-core; everything else still shows."""
    for module, message in _KNOWN:
        warnings.filterwarnings("ignore", message=message, module=module)
    for name in ("megatron", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
