"""`nereid analyze`: which of its commands is meant. Must not import what only the extra brings."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    "profile": ("nereid.analyze.profile", "search settings by measuring (without a command: this)"),
    "report": ("nereid.analyze.report", "make the reports of a checkpoint again"),
}
_USAGE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    name = argv[0] if argv and not argv[0].startswith("-") else "profile"
    if name not in _COMMANDS or list(argv) in ([], ["-h"], ["--help"]):
        if name not in _COMMANDS:
            sys.stderr.write(f"nereid analyze: unknown command '{name}'\n")
        lines = [f"  nereid analyze {each:8} {what}" for each, (_, what) in _COMMANDS.items()]
        usage = "usage: nereid analyze [COMMAND] [FLAGS]   (COMMAND --help lists a command's flags)"
        sys.stdout.write("\n".join((usage, *lines)) + "\n")
        return 0 if name in _COMMANDS and argv else _USAGE
    try:
        module = importlib.import_module(_COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("nereid"):
            raise
        missing = f"nereid analyze: no module '{error.name}': pip install 'nereid-mesh[analyze]'\n"
        sys.stderr.write(missing)
        return 1
    code: int = module.main(list(argv[1:] if argv and argv[0] == name else argv))
    return code
