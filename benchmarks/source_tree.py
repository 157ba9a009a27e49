"""How Python runs a source tree of this project, of this release or an earlier one.

Run as a program, the module prints the value of PYTHONPATH for the tree in the working directory.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path


def source_path(tree: Path) -> str:
    """Return the value of PYTHONPATH for a tree: the directories that have its packages."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]
    where = settings["packages"]["find"].get("where", ["."])
    return os.pathsep.join(str((tree / directory).resolve()) for directory in where)


def service_module(name: str, tree: Path | None = None) -> str:
    """Return the module for ``python -m`` that starts a service, also for releases up to 0.2."""
    earlier = tree is not None and not (tree / "services" / name / f"nereid_{name}").is_dir()
    return f"nereid.services.{name}" if earlier else f"nereid_{name}"


if __name__ == "__main__":
    print(source_path(Path.cwd()))
