"""The processes of a mesh, as its supervisor has them.

Some are older than its event loop: this must not import asyncio, nor anything else that takes long.
Knows nothing of what they serve.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from nereid.config.inherited_secrets import public_environ
from nereid.process.standby import Activation, StandbySocket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG: Final = 1


class ChildProcess:
    """One process, in a session of its own; it ends with this one."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]
    ) -> None:
        """descriptors: those that it inherits, beside the standard ones."""
        self._popen = subprocess.Popen(
            argv,
            env=environ,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, safe beside threads
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None: it runs."""
        return self._popen.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """End it now, and wait for that."""
        self._popen.kill()
        self._popen.wait()


def _die_with_parent() -> None:
    """In the child, before it executes: have the kernel end it when the supervisor ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class StandbyProcess:
    """A process that imports what it will need, and waits."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self._socket = StandbySocket()
        try:
            environ = {**public_environ(), **self._socket.environ}
            self._process = ChildProcess(argv, environ, self._socket.descriptors)
            self._socket.on_started()
        except BaseException:
            self._socket.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def activate(self, activation: Activation) -> ChildProcess:
        """Have it serve; the caller has the process then. Raises OSError: it has ended."""
        try:
            self._socket.activate(activation)
        except OSError:
            self.kill()
            raise
        self._socket.close()
        return self._process

    def kill(self) -> None:
        """It is not needed any more."""
        self._socket.close()
        self._process.kill()
