"""Imports that a gateway makes once it serves: NumPy, for typed, JSON and shared-memory tensors.

NumPy takes as long as a fifth of all other imports. The functions that need it import it
themselves, which costs nothing once it is imported.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = ("nereid.core.tensors.tensors",)


def import_deferred() -> None:
    """Import the modules; call it in a thread, as it takes a tenth of a second."""
    for name in _MODULES:
        importlib.import_module(name)
