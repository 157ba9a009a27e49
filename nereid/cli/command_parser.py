"""Parser of a command's flags, whose --help is short, and whose --help-all is whole."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommandParser(argparse.ArgumentParser):
    """argparse's parser, without abbreviations, and with flags that only --help-all shows."""

    def __init__(self, program: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=program, description=description, epilog=epilog or None, allow_abbrev=False
        )
        self._hidden: list[tuple[argparse.Action, str | None]] = []
        self.add_argument("--help-all", action=_HelpAll, help="show all flags and exit")

    def hide(self, *actions: argparse.Action) -> None:
        """Have only --help-all show these flags."""
        for action in actions:
            self._hidden.append((action, action.help))
            action.help = argparse.SUPPRESS

    def show_all(self) -> None:
        """Have --help show the hidden flags, too."""
        for action, text in self._hidden:
            action.help = text


def with_commands(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, argparse.ArgumentParser],
    summaries: Mapping[str, str],
) -> argparse.ArgumentParser:
    """Add the parsers of commands to a parser, and return it."""
    # argparse calls the class with the parser's full name.
    parser_of: Any = lambda prog, **_options: commands[prog.rpartition(" ")[2]]  # noqa: E731
    added = parser.add_subparsers(parser_class=parser_of, metavar="COMMAND")
    for name in commands:
        added.add_parser(name, help=summaries[name])
    return parser


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        if isinstance(parser, CommandParser):
            parser.show_all()
        parser.print_help()
        parser.exit()
