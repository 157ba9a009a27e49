"""Notification of the service manager that has started this process: systemd's sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_VARIABLE: Final = "NOTIFY_SOCKET"
_log = logging.getLogger(__name__)


class ServiceManager:
    """The service manager's socket, or none."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the socket from the environment, so that no child can notify in this one's name."""
        address = environ.pop(_VARIABLE, "")
        # "@" stands for the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def notify(self, state: str) -> None:
        """Send READY or STOPPING; log an error, and never wait."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            _log.warning("service manager was not notified of %s: %s", state, error)
