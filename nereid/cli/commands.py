"""Commands of `nereid`, which distributions declare as entry points `nereid.commands`.

They are read here in about 1 ms, because importlib.metadata takes 15 ms and pathlib 4 ms.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

GROUP: Final = "nereid.commands"


class Command(NamedTuple):
    """Command that a distribution declares. Its module may not be installed."""

    name: str
    module: str
    function: str

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the module, return the command's function; may raise ModuleNotFoundError."""
        function: Callable[[Sequence[str]], int]
        function = getattr(importlib.import_module(self.module), self.function)
        return function

    def make_parser(self) -> argparse.ArgumentParser | None:
        """Import the module and describe its flags, if it does; may raise ModuleNotFoundError."""
        make = getattr(importlib.import_module(self.module), "make_parser", None)
        return None if make is None else make()

    def summary(self) -> str:
        """Return the module's SUMMARY, or "", without an import; may raise ModuleNotFoundError."""
        import ast  # noqa: PLC0415
        from importlib.util import find_spec  # noqa: PLC0415

        spec = find_spec(self.module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{self.module}'", name=self.module)
        source = _read(spec.origin) if spec.origin and spec.origin.endswith(".py") else ""
        for statement in ast.parse(source).body:
            match statement:
                case ast.AnnAssign(ast.Name("SUMMARY"), value=ast.Constant(str(text))):
                    return text
                case ast.Assign([ast.Name("SUMMARY")], ast.Constant(str(text))):
                    return text
        return ""


def declared_commands(path: Sequence[str]) -> Iterator[Command]:
    """Yield the commands on an import path, lazily. The first command of a name counts."""
    for folder in path:
        try:
            names = sorted(os.listdir(folder or "."))  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield from _parse(_read(f"{folder or '.'}/{name}/entry_points.txt"))


def find_command(name: str) -> Command | None:
    """Return the command with this name, or `None` if no installed distribution declares it."""
    return next((command for command in declared_commands(sys.path) if command.name == name), None)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _parse(text: str) -> Iterator[Command]:
    section = text.partition(f"[{GROUP}]")[2].partition("\n[")[0]
    for line in section.splitlines():
        name, _, value = line.partition("=")
        module, colon, function = value.partition(":")
        if colon and not line.startswith("#"):
            # Extras in brackets may follow the function's name.
            yield Command(name.strip(), module.strip(), function.partition("[")[0].strip())
