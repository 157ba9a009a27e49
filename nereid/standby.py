"""Processes that have imported everything and wait until they are needed.

A supervisor passes the read end of a pipe, and its number in an environment variable; a process
without it serves at once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_VARIABLE: Final = "NEREID_STANDBY_FD"


def stand_by(environ: MutableMapping[str, str]) -> None:
    """Wait until this process is needed, if it was started before that. To be called before it
    reads settings, and has threads, files or an event loop. Ends the process when nobody will ever
    need it.
    """
    text = environ.pop(_VARIABLE, "")
    if not text.isdecimal():
        return
    descriptor = int(text)
    needed = os.read(descriptor, 1)
    os.close(descriptor)
    if not needed:
        sys.exit(0)


class StandbyPipe:
    """The supervisor's side, for one process."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the process inherits."""
        return (self._read_end,)

    @property
    def environ(self) -> dict[str, str]:
        """What the process finds it by."""
        return {_VARIABLE: str(self._read_end)}

    def on_started(self) -> None:
        """The process has its end."""
        os.close(self._read_end)
        self._read_end = -1

    def activate(self) -> None:
        """It is needed now. Raises OSError: it has ended."""
        os.write(self._write_end, b"\n")

    def close(self) -> None:
        for descriptor in (self._read_end, self._write_end):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_end = self._write_end = -1
