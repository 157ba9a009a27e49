"""Processes that have imported everything and wait until they are needed.

A supervisor passes one end of a socket, and its number in an environment variable; a process
without it serves at once. What it is to serve with comes over that socket, as such a process may be
older than the plan of its mesh.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

_VARIABLE: Final = "NEREID_STANDBY_FD"
# Linux passes no more with one message.
_MOST_DESCRIPTORS: Final = 253


class Activation(NamedTuple):
    """What a process serves with that was not known when it was started."""

    # After the program's name.
    argv: Sequence[str]
    environ: Mapping[str, str]
    # It inherits them, by the numbers that they have here.
    descriptors: Sequence[int]


def stand_by(environ: MutableMapping[str, str]) -> None:
    """Wait until this process is needed, if it was started before that. To be called before it
    reads settings, and has threads, files or an event loop. Ends the process when nobody will ever
    need it.
    """
    text = environ.pop(_VARIABLE, "")
    if not text.isdecimal():
        return
    with socket.socket(fileno=int(text)) as connection:
        needed, descriptors, _, _ = socket.recv_fds(connection, 1, _MOST_DESCRIPTORS)
    if not needed:
        sys.exit(0)
    described, *inherited = descriptors
    with os.fdopen(described, encoding="utf-8") as file:
        activation = Activation(**json.load(file))
    _renumber(inherited, activation.descriptors)
    sys.argv[1:] = activation.argv
    environ.update(activation.environ)


def _renumber(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors the numbers by which the environment names them."""
    above = max(numbers, default=0) + 1
    moved = []
    for each in received:
        moved.append(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above))
        os.close(each)
    for each, number in zip(moved, numbers, strict=True):
        if _is_open(number):
            sys.exit(f"descriptor {number} is in use; the next process has it free")
        os.dup2(each, number, inheritable=False)
        os.close(each)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class StandbySocket:
    """The supervisor's side, for one process."""

    def __init__(self) -> None:
        self._own, self._theirs = socket.socketpair()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the process inherits."""
        return (self._theirs.fileno(),)

    @property
    def environ(self) -> dict[str, str]:
        """What the process finds it by."""
        return {_VARIABLE: str(self._theirs.fileno())}

    def on_started(self) -> None:
        """The process has its end."""
        self._theirs.close()

    def activate(self, activation: Activation) -> None:
        """It is needed now. Raises OSError: it has ended."""
        # Not in the message: a socket's buffer is bounded, and nobody else may read it.
        described = os.memfd_create("nereid-activation", os.MFD_CLOEXEC)
        try:
            os.write(described, json.dumps(activation._asdict()).encode())
            os.lseek(described, 0, os.SEEK_SET)
            socket.send_fds(self._own, [b"\n"], [described, *activation.descriptors])
        finally:
            os.close(described)

    def close(self) -> None:
        self._own.close()
        self._theirs.close()
