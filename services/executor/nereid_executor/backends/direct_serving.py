"""Models that serve their instance's stream themselves, without the instance's thread."""

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

    # The models of the instance number their streams from 1.
    number: int
    instance_number: int
    # The metadata identifies the instance to the scheduler.
    address: str
    metadata: Sequence[tuple[str, str | bytes]]
    # Domain of the memory that is shared with the workers. `None` forbids workers their own links
    # to the scheduler.
    link_domain: str | None
    # Takes a method and returns metadata for one call, which proves the executor's role.
    credentials: Callable[[str], Iterable[tuple[str, str | bytes]]] | None
    # `stopping` ends the stream after the running batch. `abandoned` ends the stream at once,
    # because responses cannot be delivered.
    stopping: threading.Event
    abandoned: threading.Event
    times: RecoveryTimes
    # Called if the model is lost. Arguments: the stream's number, the last batch begun, and the
    # error for that batch's requests.
    on_model_lost: Callable[[int, int, ErrorStatus], None]
    recent_runs: RecentRuns
    # `None` if the scheduler cannot pass on outputs in shared memory.
    lender: OutputLender | None
    tracer: Tracer | None


class DirectServing(ABC):
    """A RequestModel that may serve its instance's stream itself. The same thread rules apply."""

    can_serve_stream: bool

    @property
    @abstractmethod
    def last_batch_begun(self) -> int:
        """Number of the last batch on a stream that the model serves; 0 before the first."""

    @abstractmethod
    def begin_tenure(self) -> None:
        """Forget the last batch's number. The next scheduler counts batches from 1 again."""

    @abstractmethod
    def running_requests(self) -> Sequence[int]:
        """Return the ids of the requests that the model executes from its own stream."""

    @abstractmethod
    def serve_stream(self, context: StreamContext) -> None:
        """Serve until the stream ends, or until an event of the context is set.

        Raises ModelLostError after on_model_lost, RpcError if the stream fails, ProtocolError if
        the scheduler breaks the protocol.
        """

    @abstractmethod
    def wake(self) -> None:
        """Check again whether the tenure is stopping or abandoned. Thread-safe."""
