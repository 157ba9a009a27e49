"""Nereid's own modules, for a worker that runs in Nereid's Python.

A model may have packages of the same names, so none of these stays where it would be found.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_OURS = ("nereid",)
# Under which Nereid's modules know the worker's.
_KNOWN_AS = "nereid.services.executor.backends.python.worker_site.nereid_worker"


def load(roots: list[str], name: str) -> ModuleType:
    """Import a module and what it needs from these folders; raises whatever that raises."""
    path = list(sys.path)
    theirs = _taken()
    own = __name__.rpartition(".")[0]
    for known, module in list(sys.modules.items()):
        if known == own or known.startswith(own + "."):
            sys.modules[_KNOWN_AS + known[len(own) :]] = module
    sys.path[:0] = roots
    try:
        return importlib.import_module(name)
    finally:
        _taken()
        sys.modules.update(theirs)
        sys.path[:] = path
        importlib.invalidate_caches()


def _taken() -> dict[str, ModuleType]:
    """Take out of sys.modules what goes by our names."""
    names = [name for name in sys.modules if name.partition(".")[0] in _OURS]
    return {name: sys.modules.pop(name) for name in names}
