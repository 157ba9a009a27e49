"""Models that receive the requests of a batch one by one, and respond to each in their own time."""

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
    """Controls of a request that a model has begun; the values are those of pb.MemberControl."""

    #: Nobody waits for its responses any more; it still needs a last one.
    CANCEL = 0
    #: Its client cannot keep up, and wants no responses for now.
    PAUSE = 1
    RESUME = 2


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """The common part of requests with one head; the same object while such requests come."""

    # Name, datatype, and shape with the batch dimension, of each input.
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    # Classifications requested of outputs, by output. The executor computes them.
    classes: Mapping[str, Classification] = field(default_factory=dict)


class Request(NamedTuple):
    """One request for a RequestModel."""

    spec: RequestSpec
    # Raw bytes of the inputs in the spec's order, or references that are valid until the last
    # response.
    tensors: Sequence[bytes | SharedMemory]
    request_id: str
    parameters: dict[str, Parameter]
    # W3C trace context in its binary form, or empty.
    trace_context: bytes
    # Time until the client's deadline, or 0 if it has none.
    remaining_us: int
    # The client's limit on queueing.
    timeout_us: int
    # Shared memory for the outputs of the response, if they fit.
    output_buffer: SharedMemory | None = None


class Response(NamedTuple):
    """One response to a request: an error, or a ModelInferResponse's head and its tensors."""

    # Index of the request in its batch.
    member: int
    # Another response follows. The last one may have neither error nor head.
    more: bool
    error_status: ErrorStatus | None = None
    head: bytes = b""
    # Outputs. Either all or none of them are in the request's output buffer.
    tensors: Sequence[bytes | memoryview | SharedMemory] = ()


class BatchUpdate(NamedTuple):
    """Progress of one batch."""

    batch: int
    responses: Sequence[Response]
    # The model has finished executing the batch and can execute the next one.
    ready_for_next: bool
    # Requests of iterative sequences that the model wants again, in a later batch.
    rescheduled: Sequence[int] = ()


class ModelLostError(Exception):
    """A RequestModel has ended unexpectedly, with everything that it was executing."""


class RequestModel(Protocol):
    """A loaded model that responds in its own time; its instance's thread alone calls it.

    It declares that it `executes_requests` (Capabilities). If its configuration says `decoupled`, a
    request may have any number of responses, also after its batch has been executed. A class that
    extends this one inherits what suits a model that lives in the executor's process.
    """

    # Limit on the execution of a batch, in seconds; `None` means no limit.
    execution_timeout_s: float | None = None

    def file_descriptors(self) -> Sequence[int]:
        """Return descriptors; at least one is readable while there are updates to collect."""

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        """Start executing a batch.

        Raises:
            NereidError: the model cannot execute this batch; it continues with others.
            ModelLostError: the model has ended.
        """

    def control_request(self, batch: int, member: int, kind: int) -> None:
        """Cancel, pause or resume a request; kind: a ControlKind."""

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        """Yield all updates that are there, without waiting.

        ready: those of its file descriptors that are readable. Raises ModelLostError after the last
        update if the model has ended.
        """

    def may_have_begun(self, batch: int) -> bool:
        """Return whether a model that has ended may have seen this batch."""
        return batch > 0

    def terminate(self) -> None:
        """End the model at once: its batch takes too long, or nobody wants its warm-up any more."""

    def restart(self, stopping: Event) -> bool:
        """Start a lost model again, which may take long; return False to end the instance.

        A model that never raises ModelLostError is not asked. `stopping` is set when nobody wants
        the instance any more.
        """
        del stopping
        return False

    def close(self) -> None:
        """Free what the model holds."""


class ReadinessReporter(Protocol):
    """A RequestModel that may decide by itself whether it is ready.

    It declares that it `decides_readiness` (Capabilities).
    """

    @property
    def reports_readiness(self) -> bool:
        """Return whether the model that is loaded now decides it."""

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        """Ask the model whether it is ready. Called from any thread.

        on_response is called from any thread: soon with None, as the model is being asked, then
        with its response, or never if the model hangs.
        """
