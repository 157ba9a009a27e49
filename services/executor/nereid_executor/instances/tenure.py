"""An instance's service for one session with a scheduler; one may follow another."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshClient
    from nereid.core.wire.messages import ErrorStatus
    from nereid.rpc import ThreadStreams
    from nereid.rpc.net.tls_files import Tls
    from nereid_executor.core.shared_tensors import OutputLender
    from nereid_executor.instances.instance import Instance


@dataclass(frozen=True)
class SchedulerEndpoint:
    """How instances reach a scheduler."""

    address: str
    # For the instances' streams; None: plaintext.
    tls: Tls | None = None
    # To a scheduler in this process, for models that execute batches; None: by its address.
    thread_streams: ThreadStreams | None = None
    # How long a lone request may take that the scheduler's event loop executes itself; 0: none.
    inline_limit_ns: int = 0
    # The domain of the memory that this executor shares with its models' processes, if these may
    # have links of their own to the scheduler, as it is the only one; None: they may not.
    link_domain: str | None = None


@dataclass(frozen=True)
class InstanceCallbacks:
    """What becomes of an instance during a tenure; called from its thread."""

    on_loaded: Callable[[], None]
    # Once the model is closed: with the error, or None after stop().
    on_ended: Callable[[Instance, ErrorStatus | None], None]
    # The model is still loaded, and without a stream, after stop() with keep.
    on_kept: Callable[[Instance], None]
    # A model that serves its stream itself was lost: the stream's number, the last batch that the
    # model had begun, and the error for that batch's requests.
    on_model_lost: Callable[[int, int, ErrorStatus], None]


@dataclass(eq=False)
class Tenure:
    """From the scheduler's command until stop(); any thread may read it."""

    # The scheduler's number for the instance.
    number: int
    endpoint: SchedulerEndpoint
    callbacks: InstanceCallbacks
    # For requests of the model.
    mesh: MeshClient
    # None: the scheduler cannot pass on responses in this executor's shared memory.
    lender: OutputLender | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    # Set: responses can no longer be delivered.
    abandoned: threading.Event = field(default_factory=threading.Event)


class Tenures:
    """The tenures of one instance, from the event loop that gives them to the instance's thread."""

    def __init__(self, first: Tenure) -> None:
        # The one that was given last, and whether the instance is to end after it.
        self.current = first
        self.is_last = False
        self._ended = False
        self._changed = threading.Condition()

    def add(self, tenure: Tenure) -> bool:
        """Follow the current one, which was stopped, once it is over; False: it is too late."""
        with self._changed:
            if self.is_last or self._ended:
                return False
            self.current = tenure
            self._changed.notify()
            return True

    def is_wanted(self) -> bool:
        """Return whether somebody still waits for the instance, or uses it."""
        return not self.is_last

    def set_last(self) -> None:
        """The instance ends after the current one."""
        with self._changed:
            self.is_last = True
            self._changed.notify()

    def wait_given_up(self, timeout_s: float) -> bool:
        """Wait for so long, or until the current one is the last; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_last, timeout_s)

    def close(self) -> None:
        """The instance has ended."""
        with self._changed:
            self._ended = True

    def wait_after(self, last: Tenure) -> Tenure | None:
        """The one that follows; None: the instance is to end."""
        with self._changed:
            while self.current is last and not self.is_last:
                self._changed.wait()
            return None if self.is_last else self.current
