"""Commands of `nereid`, which installed distributions declare as entry points.

An entry point of the group `nereid.commands` names a `module:function`. The function takes the
command's arguments and returns its exit code. The module may have a string `SUMMARY` for
`nereid --help`, which is read from the source: listing the commands imports none of them.

This module reads the files of entry points itself, in about 1 ms, and does not use pathlib.
Importing importlib.metadata takes 15 ms and pathlib 4 ms, and would delay the first processes that
`nereid serve` starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GROUP: Final = "nereid.commands"


class Command(NamedTuple):
    """Command that a distribution declares. Its module may not be installed."""

    name: str
    module: str
    function: str

    def load(self) -> Callable[[Sequence[str]], int]:
        """Import the command's module, and return the function that runs the command.

        Raises:
            ModuleNotFoundError: the module, or one that it imports, is not installed.
        """
        function: Callable[[Sequence[str]], int]
        function = getattr(importlib.import_module(self.module), self.function)
        return function

    def summary(self) -> str:
        """Return the module's SUMMARY without importing the module, or "" if it has none.

        Raises:
            ModuleNotFoundError: the module is not installed.
        """
        # Only the list of commands needs these modules.
        import ast  # noqa: PLC0415
        from importlib.abc import InspectLoader  # noqa: PLC0415
        from importlib.util import find_spec  # noqa: PLC0415

        spec = find_spec(self.module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{self.module}'", name=self.module)
        loader = spec.loader
        source = loader.get_source(self.module) if isinstance(loader, InspectLoader) else None
        for statement in ast.parse(source or "").body:
            match statement:
                case ast.AnnAssign(ast.Name("SUMMARY"), value=ast.Constant(str(text))):
                    return text
                case ast.Assign([ast.Name("SUMMARY")], ast.Constant(str(text))):
                    return text
        return ""


def declared_commands(path: Sequence[str]) -> Iterator[Command]:
    """Yield the commands declared by the distributions on an import path.

    Folders are read in the order of the path. A folder is read only when the caller's iteration
    reaches it. If several distributions declare the same name, the first command counts.
    """
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
    """Return the text of a file, or "" if the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def _parse(text: str) -> Iterator[Command]:
    """Yield the commands that the text of an entry_points.txt declares."""
    section = text.partition(f"[{GROUP}]")[2].partition("\n[")[0]
    for line in section.splitlines():
        name, _, value = line.partition("=")
        module, colon, function = value.partition(":")
        if colon and not line.startswith("#"):
            # The function's name may be followed by extras in brackets.
            yield Command(name.strip(), module.strip(), function.partition("[")[0].strip())
