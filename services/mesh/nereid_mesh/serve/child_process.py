"""Child processes of a mesh. This module must import quickly, without asyncio."""

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
    """A process in its own session, which ends when the current process ends."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]
    ) -> None:
        """Start the process. It inherits these descriptors in addition to the standard ones."""
        self._popen = subprocess.Popen(
            argv,
            env=environ,
            pass_fds=descriptors,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, safe beside threads
        )

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or the negative number of the signal that ended it; `None` while it runs."""
        return self._popen.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._popen.kill()
        self._popen.wait()


def _die_with_parent() -> None:
    """Make the kernel end this child with the supervisor. This runs in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class StandbyProcess:
    """A process that has imported what it will need, and waits to be activated."""

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
        """Id of the process."""
        return self._process.pid

    def activate(self, activation: Activation) -> ChildProcess:
        """Make the process serve; it then belongs to the caller. Raise OSError if it has ended."""
        try:
            self._socket.activate(activation)
        except OSError:
            self.kill()
            raise
        self._socket.close()
        return self._process

    def kill(self) -> None:
        """Kill the process because it is not needed any more."""
        self._socket.close()
        self._process.kill()
