"""Imports NumPy after the gateway has begun to serve, because only some tensors need it.

The import takes as long as a fifth of all other imports. A function that needs NumPy sooner imports
it itself.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = ("nereid.core.tensors.tensors",)


def import_deferred() -> None:
    """Import the modules. Call this in a thread, because it takes a tenth of a second."""
    for name in _MODULES:
        importlib.import_module(name)
