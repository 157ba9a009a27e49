"""Models that get the requests of a batch one by one, and respond to each in their own time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from threading import Event

    from nereid.core.tensors.classification import Classification
    from nereid.core.wire.messages import ErrorStatus, Parameter
    from nereid.shm.reference import SharedMemory


class ControlKind(IntEnum):
    """Controls for a request that a model has begun. The values are those of pb.MemberControl."""

    #: Nobody waits for the responses any more. The request still needs a last response.
    CANCEL = 0
    #: The client cannot keep up, and wants no responses for now.
    PAUSE = 1
    RESUME = 2


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """The data that requests with equal heads share; consecutive requests share one object."""

    # Name, datatype and shape, with the batch dimension.
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    # Key: an output. Value: its requested classification, which the executor computes.
    classes: Mapping[str, Classification] = field(default_factory=dict)


class Request(NamedTuple):
    """One request for a RequestModel."""

    spec: RequestSpec
    # Raw bytes of the inputs in the order of the spec, or references that are valid until the last
    # response.
    tensors: Sequence[bytes | SharedMemory]
    request_id: str
    parameters: dict[str, Parameter]
    # W3C trace context in its binary form; empty if there is none.
    trace_context: bytes
    # Time until the client's deadline; 0 if there is none.
    remaining_us: int
    timeout_us: int
    # Shared memory for the outputs; used if the outputs fit.
    output_buffer: SharedMemory | None = None


class Response(NamedTuple):
    """One response to a request: an error, or the head of a ModelInferResponse with its tensors."""

    member: int
    # True if another response follows. The last response may have neither an error nor a head.
    more: bool
    error_status: ErrorStatus | None = None
    head: bytes = b""
    # Either all outputs or none are in the request's output buffer.
    tensors: Sequence[bytes | memoryview | SharedMemory] = ()


class BatchUpdate(NamedTuple):
    """Progress of one batch: its new responses, and whether the next batch may start."""

    batch: int
    responses: Sequence[Response]
    # True once the model can execute the next batch.
    ready_for_next: bool
    # Indexes of requests of iterative sequences that the model wants to get again in a later batch.
    rescheduled: Sequence[int] = ()


class ModelLostError(Exception):
    """Error for a RequestModel that has ended. All its running requests are lost."""


class RequestModel(Protocol):
    """A loaded model that responds in its own time; only its instance's thread calls it.

    The model declares `executes_requests` (Capabilities). A `decoupled` model may send responses
    after the end of a batch.
    """

    # Limit for the execution of a batch; `None` means no limit.
    execution_timeout_s: float | None = None

    def file_descriptors(self) -> Sequence[int]:
        """Return file descriptors; at least one is readable while there are updates."""

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        """Start executing a batch; raise NereidError, or ModelLostError if the model has ended."""

    def control_request(self, batch: int, member: int, kind: int) -> None:
        """Cancel, pause or resume a request; kind: a ControlKind."""

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        """Yield the updates of the ready descriptors without waiting; may raise ModelLostError."""

    def may_have_begun(self, batch: int) -> bool:
        """Return whether the model, which has ended, may have begun this batch."""
        return batch > 0

    def terminate(self) -> None:
        """End the model at once."""

    def restart(self, stopping: Event) -> bool:
        """Start a lost model again; return False to end the instance.

        This may take long. `stopping` is set when nobody wants the instance any more.
        """
        del stopping
        return False

    def close(self) -> None:
        """Free all resources that the model holds."""


class ReadinessReporter(Protocol):
    """A RequestModel that may decide whether it is ready; it declares `decides_readiness`."""

    @property
    def reports_readiness(self) -> bool:
        """True if the loaded model decides by itself whether it is ready."""

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        """Ask the model whether it is ready. Any thread may call this.

        Any thread may call on_response. The first call has `None`: the model is being asked. The
        second call has the reply. If the model hangs, there is no second call.
        """
