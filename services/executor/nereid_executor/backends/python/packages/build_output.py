"""Reads installers' output: how far a build is, and why it failed."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from nereid.core.terminal import escape_controls

_LAST_LINES: Final = 20
_MAX_LINE: Final = 1000
_MAX_WORDS: Final = 1500
_MAX_NAME: Final = 100
_RESOLVED: Final = re.compile(r"Resolved (\d+) packages?\b")
_INSTALLING: Final = re.compile(r"Installing collected packages: (.*)")
_SLOW: Final = re.compile(r"(Downloading|Building)(?: wheel for)? (\S+)")
_TERMINAL: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")


class BuildOutput:
    """The output of one build, line by line."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._installing = ""

    def add(self, line: str) -> str:
        """Add a line; return the progress that it reports, or an empty text."""
        line = escape_controls(_TERMINAL.sub("", line[:_MAX_LINE]).strip())
        line = _CREDENTIALS.sub("***@", line)
        if line:
            self._last.append(line)
        if match := _RESOLVED.match(line):
            self._installing = _installing(int(match[1]))
        elif match := _INSTALLING.match(line):
            self._installing = _installing(len(match[1].split(",")))
        elif self._installing and (match := _SLOW.match(line)):
            return f"{self._installing}: {match[1].lower()} {match[2][:_MAX_NAME]}"
        else:
            return ""
        return self._installing

    def last_words(self) -> str:
        """Return the end of the output as one line."""
        return " ".join(self._last)[-_MAX_WORDS:]


def _installing(count: int) -> str:
    return f"installing {count} package{'' if count == 1 else 's'}"
