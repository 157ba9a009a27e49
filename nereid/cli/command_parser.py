"""Parser of a command's flags, whose --help is short, and whose --help-all is whole."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        if isinstance(parser, CommandParser):
            parser.show_all()
        parser.print_help()
        parser.exit()
