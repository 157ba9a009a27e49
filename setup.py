"""What pyproject.toml cannot say: with NEREID_COMPILE=1 the modules that it lists under tool.nereid are
compiled by mypyc, which must be installed (requirements/build.txt). Otherwise everything stays pure Python.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup

# The same types in each environment, whatever is installed there: what is compiled does not depend on stubs.
MYPY_FLAGS = (
    "--config-file=",
    "--no-site-packages",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--explicit-package-bases",
)


def listed_modules() -> list[str]:
    """Paths of the modules to compile. An image has the services' folders that it needs, no others."""
    with Path("pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["tool"]["nereid"]["compiled"]
    paths = [f"{folder}/{name}.py" for folder, names in groups.items() for name in names]
    return [path for path in paths if Path(path).exists()]


def extensions() -> list[Extension]:
    from mypyc.build import mypycify

    return mypycify(
        [*MYPY_FLAGS, *listed_modules()],
        opt_level="1",
        debug_level="0",
        multi_file=True,
        group_name="nereid",
    )


setup(ext_modules=extensions() if os.environ.get("NEREID_COMPILE") == "1" else [])
