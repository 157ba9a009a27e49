"""Tenures. A tenure is a period in which an instance serves one session with a scheduler."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshClient
    from nereid.core.wire.messages import ErrorStatus
    from nereid.rpc.net.tls_files import Tls
    from nereid_executor.core.shared_tensors import OutputLender
    from nereid_executor.instances.instance import Instance


@dataclass(frozen=True)
class SchedulerEndpoint:
    """The address of a scheduler, and how instances and models' processes reach it."""

    address: str
    # `None` means plaintext.
    tls: Tls | None = None
    # Domain of the memory shared with models' processes. Set only if these may have their own
    # links, which needs a mesh without other schedulers.
    link_domain: str | None = None


@dataclass(frozen=True)
class InstanceCallbacks:
    """Callbacks for events of an instance during a tenure. The instance's thread calls them."""

    on_loaded: Callable[[], None]
    # Called after the model was closed. The error is `None` after stop().
    on_ended: Callable[[Instance, ErrorStatus | None], None]
    # Called after stop() with keep: the model is still loaded, but has no stream.
    on_kept: Callable[[Instance], None]
    # Called if a model that serves its stream itself is lost. Arguments: the stream's number, the
    # last batch begun, and the error for that batch's requests.
    on_model_lost: Callable[[int, int, ErrorStatus], None]


@dataclass(eq=False)
class Tenure:
    """The time from a scheduler's command until stop(). Any thread may read it."""

    number: int
    endpoint: SchedulerEndpoint
    callbacks: InstanceCallbacks
    mesh: MeshClient
    # `None` if the scheduler cannot pass on responses in this executor's memory.
    lender: OutputLender | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    # Set when responses can no longer be delivered.
    abandoned: threading.Event = field(default_factory=threading.Event)


class Tenures:
    """The tenures of one instance. The event loop adds them; the instance's thread serves them."""

    def __init__(self, first: Tenure) -> None:
        # True if the instance will end after the current tenure.
        self.current = first
        self.is_last = False
        self._ended = False
        self._changed = threading.Condition()

    def add(self, tenure: Tenure) -> bool:
        """Add a tenure after the current one, which was stopped. Return False if it is too late."""
        with self._changed:
            if self.is_last or self._ended:
                return False
            self.current = tenure
            self._changed.notify()
            return True

    def is_wanted(self) -> bool:
        """Return whether somebody still waits for the instance or uses it."""
        return not self.is_last

    def set_last(self) -> None:
        """Make the instance end after the current tenure."""
        with self._changed:
            self.is_last = True
            self._changed.notify()

    def wait_given_up(self, timeout_s: float) -> bool:
        """Wait until the current tenure is the last, or for timeout_s; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_last, timeout_s)

    def close(self) -> None:
        """Accept no further tenure, since the instance has ended."""
        with self._changed:
            self._ended = True

    def wait_after(self, last: Tenure) -> Tenure | None:
        """Wait for the tenure after this one; return `None` if the instance ends instead."""
        with self._changed:
            while self.current is last and not self.is_last:
                self._changed.wait()
            return None if self.is_last else self.current
