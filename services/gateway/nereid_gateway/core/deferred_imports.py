"""What a gateway imports once it serves: NumPy, which typed, JSON and shared-memory tensors need.

It takes as long as a fifth of all other imports. The functions that need it import it themselves,
which costs them nothing once it is there.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = ("nereid.core.tensors.tensors",)


def import_deferred() -> None:
    """Import them; in a thread, as it takes a tenth of a second."""
    for name in _MODULES:
        importlib.import_module(name)
