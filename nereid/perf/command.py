"""`nereid perf`: which of its commands is meant. Must not import what only the extra brings."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

from nereid.perf.exit_codes import TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    "run": ("nereid.perf.run", "measure a server (what is meant without a command)"),
    "compare": ("nereid.perf.compare", "two servers in turns, or two results: A B [FLAGS]"),
    "report": ("nereid.perf.report", "a page, tables or a summary of results: RESULT... [FLAGS]"),
    "mock": ("nereid.perf.mock.command", "a server with a set delay, to calibrate with"),
}
_USAGE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    name = argv[0] if argv and not argv[0].startswith("-") else "run"
    if name not in _COMMANDS or list(argv) in ([], ["-h"], ["--help"]):
        if name not in _COMMANDS:
            sys.stderr.write(f"nereid perf: unknown command '{name}'\n")
        lines = [f"  nereid perf {each:8} {what}" for each, (_, what) in _COMMANDS.items()]
        usage = "usage: nereid perf [COMMAND] [FLAGS]   (COMMAND --help lists a command's flags)"
        sys.stdout.write("\n".join((usage, *lines, "", TEXT)))
        return 0 if name in _COMMANDS and argv else _USAGE
    try:
        module = importlib.import_module(_COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("nereid"):
            raise
        missing = f"nereid perf: no module '{error.name}': pip install 'nereid-mesh[perf]'\n"
        sys.stderr.write(missing)
        return 1
    code: int = module.main(list(argv[1:] if argv and argv[0] == name else argv))
    return code
