"""ekvi-cockpit: launch, watch and compare the same training on AMD and NVIDIA servers."""

import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0"

# A wheel carries the runners' source as data (it travels to servers from there); put it on the path so that
# `runners.schema` imports alike from a checkout and from a wheel.
_source = _Path(__file__).parent / "_data" / "source"
if _source.is_dir() and str(_source) not in _sys.path:
    _sys.path.insert(0, str(_source))
