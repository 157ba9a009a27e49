"""Models that serve their instance's stream themselves, without the instance's thread in between.

This is for backends of this package alone: it takes the executor's own protocol with the scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from nereid.config.recovery import RecoveryTimes
    from nereid.core.wire.messages import ErrorStatus
    from nereid.observability.tracing import Tracer
    from nereid_executor.core.recent_runs import RecentRuns
    from nereid_executor.core.shared_tensors import OutputLender


@dataclass(frozen=True)
class StreamContext:
    """Values that a model needs to open and serve its instance's stream."""

    # Number of the stream among those that the instance's models have served.
    number: int
    # Number of the instance in the scheduler.
    instance_number: int
    # Address of the scheduler, and metadata that identifies the instance to it.
    address: str
    metadata: Sequence[tuple[str, str | bytes]]
    # Domain of the memory shared with the workers, if these may have links of their own.
    link_domain: str | None
    # Metadata that proves the executor's role to the scheduler, for one call of a method.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None
    # The stream ends: after the running batch, or at once because responses cannot be delivered.
    stopping: threading.Event
    abandoned: threading.Event
    times: RecoveryTimes
    # Called with the stream's number, the last batch that a lost model had begun, and the error
    # for that batch's requests.
    on_model_lost: Callable[[int, int, ErrorStatus], None]
    recent_runs: RecentRuns
    # Lender of shared memory for outputs; `None` if the scheduler cannot pass such outputs on.
    lender: OutputLender | None
    tracer: Tracer | None


class DirectServing(ABC):
    """A RequestModel that may serve its instance's stream itself; same threads as RequestModel."""

    # The model that is loaded now can serve the stream.
    can_serve_stream: bool

    @property
    @abstractmethod
    def last_batch_begun(self) -> int:
        """Number of the last batch from a stream that it serves itself; 0 before the first."""

    @abstractmethod
    def begin_tenure(self) -> None:
        """Forget the batches' numbers: the next stream's scheduler numbers its batches anew."""

    @abstractmethod
    def running_requests(self) -> Sequence[int]:
        """Return the ids of the requests that it executes, from a stream that it serves itself."""

    @abstractmethod
    def serve_stream(self, context: StreamContext) -> None:
        """Serve until the stream ends, or the context stops it.

        Raises:
            ModelLostError: the model ended, and the tenure's on_model_lost was called.
            RpcError: the stream could not be opened, or broke.
            ProtocolError: the scheduler broke the protocol (batch.received_batches).
        """

    @abstractmethod
    def wake(self) -> None:
        """Check again whether the tenure is stopping or abandoned. From any thread."""
