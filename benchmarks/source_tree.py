"""Source trees of this project, of this release or an earlier one, as Python runs them.

As a program it prints what PYTHONPATH has to be for the working directory.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path


def source_path(tree: Path) -> str:
    """Return what PYTHONPATH has to be for a tree: the directories that its packages are in."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]
    where = settings["packages"]["find"].get("where", ["."])
    return os.pathsep.join(str((tree / directory).resolve()) for directory in where)


def service_module(name: str, tree: Path | None = None) -> str:
    """Return the module that ``python -m`` starts a service by; releases up to 0.2 have another."""
    earlier = tree is not None and not (tree / "services" / name / f"nereid_{name}").is_dir()
    return f"nereid.services.{name}" if earlier else f"nereid_{name}"


if __name__ == "__main__":
    print(source_path(Path.cwd()))
