"""A program with several commands. The module must not import packages that an extra installs."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.cli.command_parser import with_commands

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_USAGE: Final = 2


@dataclass(frozen=True)
class Subcommands:
    """The commands of one program, which users type as `program`; an extra installs what they need.

    modules: maps a command to its module, with a main(), and a description.
    """

    program: str
    modules: Mapping[str, tuple[str, str]]
    extra: str
    ending: str = ""

    def make_parser(self) -> argparse.ArgumentParser:
        """Return the commands with their flags, for shell completion; needs the extra."""
        parsers: dict[str, argparse.ArgumentParser] = {
            name: importlib.import_module(module).make_parser()
            for name, (module, _) in self.modules.items()
        }
        # The flags of the first command are also those without a command.
        whole = importlib.import_module(next(iter(self.modules.values()))[0]).make_parser()
        return with_commands(
            whole, parsers, {name: text for name, (_, text) in self.modules.items()}
        )

    def main(self, argv: Sequence[str]) -> int:
        """Run the command that argv names, and return the exit code."""
        program, modules = self.program, self.modules
        name = argv[0] if argv and not argv[0].startswith("-") else next(iter(modules))
        is_help = list(argv) in (["-h"], ["--help"])
        if name not in modules or not argv or is_help:
            if name not in modules:
                sys.stderr.write(f"{program}: unknown command '{name}'\n")
            lines = [f"  {program} {module:8} {what}" for module, (_, what) in modules.items()]
            usage = f"usage: {program} [COMMAND] [FLAGS]   (COMMAND --help lists a command's flags)"
            ending = f"\n{self.ending}" if self.ending and not is_help else ""
            sys.stdout.write("\n".join((usage, *lines)) + "\n" + ending)
            if not is_help:
                return _USAGE
            # The flags of the first command follow, which is the one that users mean.
            sys.stdout.write("\n")
        try:
            module = importlib.import_module(modules[name][0])
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("nereid"):
                raise
            missing = f"no module '{error.name}': pip install 'nereid-mesh[{self.extra}]'"
            sys.stderr.write(f"{program}: {missing}\n")
            return 0 if is_help else 1
        code: int = module.main(list(argv[1:] if argv and argv[0] == name else argv))
        return code
