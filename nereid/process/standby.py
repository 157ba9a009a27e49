"""Standby processes, which have imported everything and wait until they are needed.

They receive arguments, environment and descriptors over a socket, because they may be older than
the mesh's plan.
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
# Maximum number of descriptors that Linux passes with one message.
_MAX_DESCRIPTORS: Final = 253


class Activation(NamedTuple):
    """Data that a standby process needs to serve."""

    # Arguments without the program's name.
    argv: Sequence[str]
    environ: Mapping[str, str]
    # Inherited descriptors, with the numbers that they have in the supervisor.
    descriptors: Sequence[int]


def stand_by(environ: MutableMapping[str, str]) -> None:
    """Wait until this process is needed, if it is a standby process; exit if it never is.

    Call this before the process has settings, threads, open files or an event loop.
    """
    text = environ.pop(_VARIABLE, "")
    if not text.isdecimal():
        return
    with socket.socket(fileno=int(text)) as connection:
        needed, descriptors, _, _ = socket.recv_fds(connection, 1, _MAX_DESCRIPTORS)
    if not needed:
        sys.exit(0)
    described, *inherited = descriptors
    with os.fdopen(described, encoding="utf-8") as file:
        activation = Activation(**json.load(file))
    _renumber(inherited, activation.descriptors)
    sys.argv[1:] = activation.argv
    environ.update(activation.environ)


def _renumber(received: Sequence[int], numbers: Sequence[int]) -> None:
    above = max(numbers, default=0) + 1
    moved = []
    for descriptor in received:
        moved.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above))
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        if _is_open(number):
            sys.exit(f"descriptor {number} is in use; the next process has it free")
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class StandbySocket:
    """Supervisor's end of the socket to one standby process."""

    def __init__(self) -> None:
        self._own, self._theirs = socket.socketpair()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that the process inherits."""
        return (self._theirs.fileno(),)

    @property
    def environ(self) -> dict[str, str]:
        """Variable that tells the process the number of its end of the socket."""
        return {_VARIABLE: str(self._theirs.fileno())}

    def on_started(self) -> None:
        """Close the supervisor's copy of the process's end, once the process has inherited it."""
        self._theirs.close()

    def activate(self, activation: Activation) -> None:
        """Send the activation to the standby process; raise OSError if it has ended."""
        # Send the activation in a memory file: a socket's buffer is bounded, and others must not
        # read it.
        described = os.memfd_create("nereid-activation", os.MFD_CLOEXEC)
        try:
            os.write(described, json.dumps(activation._asdict()).encode())
            os.lseek(described, 0, os.SEEK_SET)
            socket.send_fds(self._own, [b"\n"], [described, *activation.descriptors])
        finally:
            os.close(described)

    def close(self) -> None:
        """Close the socket. A process that still waits for its activation exits."""
        self._own.close()
        self._theirs.close()
