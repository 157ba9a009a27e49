"""The command `nereid completion SHELL`, which prints what completes commands and flags."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from nereid.cli.command_parser import CommandParser, with_commands
from nereid.cli.commands import declared_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.cli.commands import Command

SUMMARY: Final = "print a shell's completion of commands and flags"
_PROGRAM: Final = "nereid completion"
_DESCRIPTION: Final = "Print a script that completes the commands and flags of nereid."
_EPILOG: Final = """\
Put into ~/.bashrc: source <(nereid completion bash); into ~/.zshrc, after compinit: eval "$(nereid
completion zsh)"; fish: nereid completion fish > ~/.config/fish/completions/nereid.fish
"""
_SHELLS: Final = ("bash", "zsh", "fish")


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_argument("shell", choices=_SHELLS, help=", ".join(_SHELLS))
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the script, and return the exit code."""
    shell = make_parser().parse_args(argv).shell
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        sys.stderr.write(f"{_PROGRAM}: no module 'shtab': pip install 'nereid-mesh[completion]'\n")
        return 1
    print(shtab.complete(_all_commands(shtab.FILE), shell))
    return 0


def _all_commands(files: Any) -> argparse.ArgumentParser:
    parsers: dict[str, argparse.ArgumentParser] = {}
    summaries: dict[str, str] = {}
    for command in declared_commands(sys.path):
        if command.name in parsers:
            continue
        try:
            summaries[command.name] = command.summary()
        except ModuleNotFoundError:
            # This service is not installed.
            continue
        parsers[command.name] = _parser_of(command)
    root = argparse.ArgumentParser("nereid")
    root.add_argument("-V", "--version", action="store_true", help="print the version")
    for parser in parsers.values():
        _complete_files(parser, files)
    return with_commands(root, dict(sorted(parsers.items())), summaries)


def _parser_of(command: Command) -> argparse.ArgumentParser:
    parser = None
    # A command whose extra is not installed is completed without its flags.
    with contextlib.suppress(ModuleNotFoundError):
        parser = command.make_parser()
    if isinstance(parser, CommandParser):
        parser.show_all()
    return parser or argparse.ArgumentParser(add_help=False)


def _complete_files(parser: argparse.ArgumentParser, files: Any) -> None:
    """Complete files where a value is a text."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action.choices, dict):
            for each in action.choices.values():
                _complete_files(each, files)
        elif action.nargs not in (0, "?") and action.choices is None and action.type is None:
            # shtab's own attribute.
            vars(action)["complete"] = files
