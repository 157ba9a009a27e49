"""Output of command-line tools to an operator's terminal.

Text of clients, servers and files must not move the cursor, reorder text or start a new line.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTROLS: Final = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r"}


def escape_controls(text: str) -> str:
    """Return the text as one line, with control and order-changing characters escaped."""
    return text if text.isprintable() else _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def print_lines(lines: Iterable[str]) -> None:
    """Print each text on exactly one line, with control characters escaped."""
    sys.stdout.write("".join(f"{escape_controls(line)}\n" for line in lines))
    sys.stdout.flush()


def print_error(program: str, error: Exception | str) -> None:
    """Print on stderr why a program failed; each line begins with the program's name."""
    for line in str(error).split("\n"):
        sys.stderr.write(f"{program}: {escape_controls(line)}\n")


def log_to_terminal(form: str) -> None:
    """Log warnings and errors to stderr, each record as one line in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))
