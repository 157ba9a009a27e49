"""Models that serve their instance's stream themselves, without the instance's thread between.

Only for backends of this package: it takes the executor's own protocol with the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_executor.instances.instance import InstanceContext
    from nereid_executor.instances.tenure import Tenure


@dataclass(frozen=True)
class StreamContext:
    """What a model needs to open and serve its instance's stream."""

    # With the scheduler, until it is stopping or abandoned.
    tenure: Tenure
    # Of all of the executor's instances.
    shared: InstanceContext
    # Identifies the instance to the scheduler.
    metadata: Sequence[tuple[str, str | bytes]]
    # Its number among those that the instance's models have served.
    number: int


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
            ModelLostError: the model ended, and the tenure's on_model_lost was called.
            RpcError: the stream could not be opened, or broke.
            ProtocolError: the scheduler broke the protocol (batch.received_batches).
        """

    def wake(self) -> None:
        """Check again whether the tenure is stopping or abandoned. From any thread."""
