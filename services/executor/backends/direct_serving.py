"""Models that serve their instance's stream themselves, without the instance's thread between.

Only for backends of this package: it takes the executor's own protocol with the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.messages import ErrorStatus
    from nereid.observability.tracing import Tracer
    from nereid.services.executor.shared_tensors import OutputLender


@dataclass(frozen=True)
class StreamContext:
    """What a model needs to open and serve its instance's stream."""

    # The scheduler's.
    address: str
    # Identifies the instance to the scheduler.
    metadata: Sequence[tuple[str, str | bytes]]
    # Whether to end after the current batch; if abandoned, the scheduler is lost.
    is_stopping: Callable[[], bool]
    is_abandoned: Callable[[], bool]
    # Its number among those that the instance's models have served.
    number: int
    # Called with that, the last batch that the lost model had begun, and its requests' error.
    on_lost: Callable[[int, int, ErrorStatus], None]
    # Called after the stream with the batches that had run lately: their requests' ids, and the
    # Executed messages, which may not have reached the scheduler.
    on_kept: Callable[[Sequence[int], bytes], None]
    # How long an attempt to connect may take.
    connect_s: float
    # How long the current batch may still take once it is abandoned.
    abandoned_s: float
    # None: responses cannot be put in shared memory; nothing is traced.
    lender: OutputLender | None
    tracer: Tracer | None


@runtime_checkable
class DirectServing(Protocol):
    """A RequestModel that may serve its instance's stream itself; same threads as RequestModel."""

    @property
    def can_serve_stream(self) -> bool:
        """Whether the model that is loaded now can."""

    @property
    def last_batch_begun(self) -> int:
        """The last batch from a stream that it serves itself; 0: none."""

    def begin_tenure(self) -> None:
        """The next stream is another scheduler's, which numbers its batches anew."""

    def running_requests(self) -> Sequence[int]:
        """The ids of the requests that it executes now, from a stream that it serves itself."""

    def serve_stream(self, context: StreamContext) -> None:
        """Until the stream ends, or the context stops it.

        Raises:
            ModelLostError: the model ended, and on_lost was called.
            RpcError: the stream could not be opened, or broke.
            ProtocolError: the scheduler broke the protocol (batch.received_batches).
        """

    def wake(self) -> None:
        """Check is_stopping and is_abandoned again. From any thread."""
