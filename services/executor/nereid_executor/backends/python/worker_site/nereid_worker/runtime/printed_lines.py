"""Writes what a model prints as lines of the executor's log, with the instance's name.

Text that clients have sent must not look like a log line, or contain terminal escapes.
"""

from __future__ import annotations

import re
import sys
import threading
from typing import Any, TextIO

# The same characters are escaped in the services' logs: C0 and C1 except for the tab, line
# separators, bidirectional controls, and surrogates.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MAX_LINE = 1 << 16


class PrintedLines:
    """Replaces sys.stdout or sys.stderr. Text is written as lines; other calls go to the stream."""

    def __init__(self, stream: TextIO, instance: str) -> None:
        self._stream = stream
        self._instance = instance
        # print() writes a line in pieces, and threads print concurrently.
        self._lock = threading.Lock()
        self._begun = ""

    def write(self, text: str) -> int:
        """Write text; a line is written once it is complete, or has 65,536 characters."""
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            while len(self._begun) >= _MAX_LINE:
                lines.append(self._begun[:_MAX_LINE])
                self._begun = self._begun[_MAX_LINE:]
            for line in lines:
                self._write_line(line)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts in order."""
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """Write the incomplete line, if there is one, and flush the stream."""
        with self._lock:
            if self._begun:
                self._write_line(self._begun)
                self._begun = ""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return False, so that libraries print without colours."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _write_line(self, line: str) -> None:
        for start in range(0, max(len(line), 1), _MAX_LINE):
            part = escape_controls(line[start : start + _MAX_LINE])
            self._stream.write(f"{self._instance}: {part}\n")


def escape_controls(text: str) -> str:
    """Return text without characters that would end its line or change the terminal."""
    return _CONTROLS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def begin_lines(instance: str) -> None:
    """Write printed text as lines with this instance's name from now on."""
    sys.stdout = PrintedLines(sys.stdout, instance)
    sys.stderr = PrintedLines(sys.stderr, instance)


def finish_lines() -> None:
    """Write all text that is still buffered, because the process ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, PrintedLines):
            stream.finish()
        else:
            stream.flush()
