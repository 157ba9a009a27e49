"""Models that serve their instance's stream themselves, without the instance's thread in between.

This is for backends of this package alone: it takes the executor's own protocol with the scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid_executor.instances.instance import InstanceContext
    from nereid_executor.instances.tenure import Tenure


@dataclass(frozen=True)
class StreamContext:
    """Objects that a model needs to open and serve its instance's stream."""

    # The stream is served until this is stopping or abandoned.
    tenure: Tenure
    # Objects that all instances of the executor share.
    shared: InstanceContext
    # Metadata that identifies the instance to the scheduler.
    metadata: Sequence[tuple[str, str | bytes]]
    # Number of the stream among those that the instance's models have served.
    number: int


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
