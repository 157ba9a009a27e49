"""Imports that a gateway makes after it has begun to serve.

The imported module is NumPy, which is needed for typed, JSON and shared-memory tensors. Its import
takes as long as a fifth of all other imports. The functions that need NumPy import it themselves,
which costs nothing after the first import.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = ("nereid.core.tensors.tensors",)


def import_deferred() -> None:
    """Import the modules. Call this in a thread, because it takes a tenth of a second."""
    for name in _MODULES:
        importlib.import_module(name)
