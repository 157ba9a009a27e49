"""A Python of a model's own (EXECUTION_ENV_PATH)."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


def make_environment(directory: Path) -> None:
    """A virtual environment with a module that no other has, and numpy from this one."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "only_here.py").write_text("WORD = 'here'")
    (site / "numpy.pth").write_text(sysconfig.get_path("purelib"))
