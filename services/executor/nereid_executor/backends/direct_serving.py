"""Models that serve their instance's stream themselves, without the instance's thread.

Only backends of this package can do so, since the model must implement the executor's own protocol
with the scheduler.
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
    """Values with which a model opens and serves its instance's stream."""

    # Number of the stream. The streams that models of the instance serve themselves are numbered
    # from 1.
    number: int
    # Number that the scheduler has given the instance.
    instance_number: int
    # Address of the scheduler, and the metadata by which the scheduler recognises the instance.
    address: str
    metadata: Sequence[tuple[str, str | bytes]]
    # Domain of the memory that is shared with the workers; `None` if workers may not have their own
    # links to the scheduler.
    link_domain: str | None
    # Function that returns metadata for one call of a method. The metadata proves the executor's
    # role to the scheduler.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None
    # Events that end the stream: `stopping` after the running batch; `abandoned` at once, because
    # responses cannot be delivered.
    stopping: threading.Event
    abandoned: threading.Event
    times: RecoveryTimes
    # Called if the model is lost. Arguments are the stream's number, the last batch that the model
    # had begun, and the error for that batch's requests.
    on_model_lost: Callable[[int, int, ErrorStatus], None]
    recent_runs: RecentRuns
    # Lends shared memory for outputs; `None` if the scheduler cannot pass such outputs on.
    lender: OutputLender | None
    tracer: Tracer | None


class DirectServing(ABC):
    """A RequestModel that may serve its instance's stream itself, by the same thread rules."""

    # True if the model that is loaded now can serve the stream.
    can_serve_stream: bool

    @property
    @abstractmethod
    def last_batch_begun(self) -> int:
        """Number of the last batch of a stream that the model serves itself; 0 before the first."""

    @abstractmethod
    def begin_tenure(self) -> None:
        """Forget the last batch's number, since the next scheduler counts batches from 1 again."""

    @abstractmethod
    def running_requests(self) -> Sequence[int]:
        """Return the ids of the requests that the model executes from a stream it serves itself."""

    @abstractmethod
    def serve_stream(self, context: StreamContext) -> None:
        """Serve until the stream ends, or until an event of the context ends it.

        Raises:
            ModelLostError: the model ended, and the tenure's on_model_lost was called.
            RpcError: the stream could not be opened, or broke.
            ProtocolError: the scheduler broke the protocol (batch.lifecycle.received_batches).
        """

    @abstractmethod
    def wake(self) -> None:
        """Check again whether the tenure is stopping or abandoned. Thread-safe."""
