"""Registers the modules that model.py files import, under Triton's names.

sys.path is not searched, because a model's own folder may have files of the same names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from . import api, native_api

# Processes that models start import these files.
_SITE = Path(__file__).resolve().parents[2]


def register() -> None:
    """Make the modules importable by adding them to sys.modules."""
    for name, source in (
        ("triton_python_backend_utils", api),
        ("c_python_backend_utils", native_api),
    ):
        module = ModuleType(name, source.__doc__)
        module.__file__ = str(_SITE / f"{name}.py")
        module.__dict__.update({member: getattr(source, member) for member in source.__all__})
        sys.modules[name] = module
