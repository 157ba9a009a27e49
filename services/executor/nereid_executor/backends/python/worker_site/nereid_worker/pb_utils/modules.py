"""Triton's names of the modules that model.py files import.

They are made of this package, whatever name it was imported by, and not looked for on sys.path: a
model's own folder may have files of the same names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from . import api, native_api

# Has a file for each, for the processes that models start.
_SITE = Path(__file__).resolve().parents[2]


def register() -> None:
    """Make them importable."""
    for name, source in (
        ("triton_python_backend_utils", api),
        ("c_python_backend_utils", native_api),
    ):
        module = ModuleType(name, source.__doc__)
        module.__file__ = str(_SITE / f"{name}.py")
        module.__dict__.update({each: getattr(source, each) for each in source.__all__})
        sys.modules[name] = module
