"""AMD's amdsmi binding, taken from beside its library in a ROCm installation and from nowhere else, and its answers.

A binding of another version than its library fails at import, or writes past the structures that it made. It prints
to standard output when it is unhappy, also at import.
"""

from __future__ import annotations

import glob
import importlib
import os
import sys
from typing import Any, List

from .amd_values import GROUPS
from .source import FAILED, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Gone, SourceError

_AGAIN, _GONE, _DENIED, _UNKNOWN = (9, 30), (32, 34), 10, (2, 3)  # status codes of the library


class Refused(Exception):
    """The library gave no value: a code and a text of `source`; `again` where the next tick may have one."""

    def __init__(self, code: str, text: str, again: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.again = again


def imported() -> Any:
    """The binding of the first ROCm here that has one beside its library."""
    for root in _roots():
        folder = os.path.join(root, "share", "amd_smi")
        if not os.path.isfile(os.path.join(folder, "amdsmi", "__init__.py")):
            continue
        if not any(glob.glob(os.path.join(glob.escape(root), lib, "libamd_smi.so*")) for lib in ("lib", "lib64")):
            raise SourceError(NOT_FOUND, "%s has the amdsmi binding but no libamd_smi.so beside it" % root)
        return _import(root, folder)
    text = "no amdsmi binding stands beside a library in $ROCM_PATH or /opt/rocm*"
    raise SourceError(NOT_FOUND, text, "install amd-smi-lib of the ROCm that the driver came with")


def _roots() -> List[str]:
    roots = [os.environ.get("ROCM_PATH") or "", "/opt/rocm", *sorted(glob.glob("/opt/rocm-*"), reverse=True)]
    return [root for root in roots if root]


def _import(root: str, folder: str) -> Any:
    _forget()
    # The binding looks for its library by these first, then anywhere: it must be the one beside it.
    os.environ["ROCM_PATH"] = os.environ["ROCM_HOME"] = root
    sys.path.insert(0, folder)
    try:
        lib = importlib.import_module("amdsmi")
    except (Exception, SystemExit) as error:
        _forget()
        text = "the amdsmi binding in %s does not fit its library: %s: %s" % (folder, type(error).__name__, error)
        raise SourceError(FAILED, text, "install one version of ROCm as a whole") from error
    finally:
        sys.path.remove(folder)
    if not os.path.realpath(lib.__file__ or "").startswith(os.path.realpath(folder) + os.sep):
        raise SourceError(FAILED, "import amdsmi gave %s, which stands outside of %s" % (lib.__file__, folder))
    return lib


def _forget() -> None:
    for name in [name for name in sys.modules if name == "amdsmi" or name.startswith("amdsmi.")]:
        del sys.modules[name]


def call(lib: Any, name: str, *args: Any) -> Any:
    """One function of the binding; raises Refused, or Gone where the driver or the library left."""
    function = getattr(lib, name, None)
    if function is None:
        raise Refused(NOT_FOUND, "this version of the amdsmi binding has no %s" % name)
    try:
        return function(*args)
    except (KeyError, AttributeError) as error:
        raise Refused(FAILED, "%s: %s: %s" % (name, type(error).__name__, error)) from error
    except Exception as error:
        status = getattr(error, "err_code", None)
        text = "%s: %s" % (name, " ".join(str(error).split()))
        if status in _GONE:
            raise Gone(FAILED, text, "load the amdgpu driver") from error
        if status == _DENIED:
            raise Refused(NO_PERMISSION, "%s; %s" % (text, GROUPS)) from error
        raise Refused(NOT_SUPPORTED if status in _UNKNOWN else FAILED, text, status in _AGAIN) from error
