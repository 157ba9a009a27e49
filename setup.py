"""What pyproject.toml cannot say: mypyc compiles the modules that it lists, where that can be done.

NEREID_COMPILE=1 fails where it cannot, 0 leaves all in pure Python. Not set: compiled if there are
a C compiler, Python's headers and mypyc, and pure otherwise and for editable installs.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError
from setuptools.modified import newer_group

# Commands for which setup.py runs as well, and which compile nothing.
METADATA_COMMANDS = {"dist_info", "egg_info", "sdist"}
# Contributors change what they have installed.
PURE_COMMANDS = {*METADATA_COMMANDS, "develop", "editable_wheel"}
ASKED = os.environ.get("NEREID_COMPILE", "")
# What decides how C is made and compiled.
BUILT_BY = ("setup.py", "requirements/build.txt")
# Types come from this repository alone, so that the same is compiled whatever else is installed.
MYPY_FLAGS = (
    "--config-file=",
    "--explicit-package-bases",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--no-site-packages",
)


def listed_modules() -> list[str]:
    """Paths of the modules to compile. An image has the folders of its own service only."""
    with Path("pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["nereid"]["compiled"]
    paths = [f"{folder}/{name}.py" for folder, names in folders.items() for name in names]
    return [path for path in paths if Path(path).exists()]


def compiles() -> bool:
    """Whether this build compiles them."""
    if ASKED:
        return ASKED == "1" and METADATA_COMMANDS.isdisjoint(sys.argv)
    return PURE_COMMANDS.isdisjoint(sys.argv) and bool(
        find_spec("mypyc")
        and shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
        and Path(sysconfig.get_path("include"), "Python.h").exists()
    )


def extensions() -> list[Extension]:
    try:
        from mypyc.build import mypycify  # noqa: PLC0415
    except ImportError:
        sys.exit("NEREID_COMPILE=1 needs mypyc: requirements/build.txt has the version")
    made = mypycify(
        [*MYPY_FLAGS, *listed_modules()],
        opt_level="1",
        debug_level="0",
        multi_file=True,
        group_name="nereid",
    )
    for extension in made:
        # Another compiler's warnings are no reason not to build.
        kept = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        extension.extra_compile_args = kept
    return made


class ParallelBuild(build_ext):
    """Compiles the files of an extension side by side, those that mypyc has written anew."""

    def run(self) -> None:
        try:
            super().run()
        except BaseError as error:
            if ASKED:
                raise
            # All or nothing: they import each other.
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            self.warn(f"nothing is compiled, the package is pure Python: {error}")

    def build_extension(self, ext: Extension) -> None:
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


if compiles():
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
else:
    setup()
