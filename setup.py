"""Build steps that pyproject.toml cannot express: mypyc compiles the modules of marked folders.

A folder's marks stand in its `__init__.py`, in a line such as ``# layout: compiled, pure``. They
hold for its modules, not for folders in it. A module opts out of one with a line such as
``# layout: not compiled, REASON``; in a folder without the mark it may carry the mark itself.
docs/decisions/layout.md says what each mark demands.

With NEREID_COMPILE=1 the build fails where it cannot compile, with 0 all stays in pure Python. If
it is not set, modules are compiled if there are a C compiler, Python's headers and mypyc;
otherwise, and for editable installs, the build is pure.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError
from setuptools.modified import newer_group

# Commands for which setup.py runs as well, and which compile nothing.
METADATA_COMMANDS = {"dist_info", "egg_info", "sdist"}
# Contributors change what they have installed.
PURE_COMMANDS = {*METADATA_COMMANDS, "develop", "editable_wheel"}
ASKED = os.environ.get("NEREID_COMPILE", "")
MARKS = re.compile(r"^# layout: ([a-z, ]+)$", re.MULTILINE)
OPTED_OUT = re.compile(r"^# layout: not (\w+), (.+)$", re.MULTILINE)
# What decides how C is made and compiled.
BUILT_BY = ("setup.py", "requirements/build.txt")
# Types come from this repository alone, so that the same is compiled whatever else is installed.
MYPY_FLAGS = (
    "--config-file=",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--no-site-packages",
)


def source_directories(root: Path) -> list[str]:
    """Return the directories below the root that packages are looked for in."""
    with (root / "pyproject.toml").open("rb") as file:
        where: list[str] = tomllib.load(file)["tool"]["setuptools"]["packages"]["find"]["where"]
    return where


def marked_modules(mark: str, root: Path) -> dict[str, Path]:
    """Return the modules that a mark holds for: names and paths.

    These are the modules of all folders that have it, without `__init__` and modules that opt out,
    and modules that carry it themselves. An image has the folders of its own service only.
    """
    found = {}
    for directory in source_directories(root):
        for package in find_packages(str(root / directory), include=["nereid*"]):
            folder = root.joinpath(directory, *package.split("."))
            marks = MARKS.search((folder / "__init__.py").read_text())
            holds = marks is not None and mark in marks[1].split(", ")
            for path in sorted(folder.glob("*.py")):
                text = path.read_text()
                if holds:
                    marked = mark not in {name for name, _ in OPTED_OUT.findall(text)}
                else:
                    marked = f"\n# layout: {mark}\n" in text
                if path.name != "__init__.py" and marked:
                    found[f"{package}.{path.stem}"] = path.relative_to(root)
    return found


def compiles() -> bool:
    """Return whether this build compiles them."""
    if ASKED:
        return ASKED == "1" and METADATA_COMMANDS.isdisjoint(sys.argv)
    return PURE_COMMANDS.isdisjoint(sys.argv) and bool(
        find_spec("mypyc")
        and shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
        and Path(sysconfig.get_path("include"), "Python.h").exists()
    )


def extensions() -> list[Extension]:
    """Return the extensions that mypyc makes of the modules."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415
    except ImportError:
        sys.exit("NEREID_COMPILE=1 needs mypyc: requirements/build.txt has the version")
    made = mypycify(
        [*MYPY_FLAGS, *map(str, marked_modules("compiled", Path()).values())],
        opt_level="1",
        debug_level="0",
        multi_file=True,
        group_name="nereid",
    )
    for extension in made:
        # Warnings of another compiler are no reason not to build.
        kept = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args = kept
    return made


class ParallelBuild(build_ext):
    """Build that compiles files of an extension side by side, if mypyc has written them anew."""

    def run(self) -> None:
        """Build the extensions, or none of them where that fails and is not required."""
        try:
            super().run()
        except BaseError as error:
            if ASKED:
                raise
            # All modules are compiled or none: they import each other.
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            self.warn(f"nothing is compiled, the package is pure Python: {error}")

    def build_extension(self, ext: Extension) -> None:
        """Compile the changed files of an extension, and link it."""

        def compile_file(source: str) -> list[str]:
            objects = self.compiler.object_filenames([source], output_dir=self.build_temp)
            if not newer_group([source, *ext.depends, *BUILT_BY], objects[0], "newer"):
                return objects
            return self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                include_dirs=ext.include_dirs,
                extra_postargs=ext.extra_compile_args,
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = list(pool.map(compile_file, ext.sources))
        ext.extra_objects += [file for files in compiled for file in files]
        ext.sources = []
        # Without sources a file from before would count as up to date.
        self.force = True
        super().build_extension(ext)


if __name__ == "__main__":
    if compiles():
        setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
    else:
        setup()
