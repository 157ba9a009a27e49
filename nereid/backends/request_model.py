"""Models that receive the requests of a batch one by one, and respond to each in their own time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from threading import Event

    from nereid.core.tensors.classification import Classification
    from nereid.core.wire.messages import ErrorStatus, Parameter
    from nereid.shm.reference import SharedMemory


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """What requests with the same head share; the same object for as long as such requests come."""

    # Name, datatype, and shape with the batch dimension.
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    # Outputs requested as classes. The executor computes them from the model's outputs.
    classes: Mapping[str, Classification] = field(default_factory=dict)


class Request(NamedTuple):
    """One request for a RequestModel."""

    spec: RequestSpec
    # The inputs' raw bytes in the spec's order, or references that hold until the last response.
    tensors: Sequence[bytes | SharedMemory]
    request_id: str
    parameters: dict[str, Parameter]
    # W3C trace context in its binary form, or empty.
    trace_context: bytes
    # What is left of the client's deadline; 0: it has none.
    remaining_us: int
    # The client's limit on queueing.
    timeout_us: int
    # Shared memory for the response's outputs, if they fit.
    output_buffer: SharedMemory | None = None


class Response(NamedTuple):
    """One response to a request: an error, or a ModelInferResponse's head and its tensors."""

    # The request's index in its batch.
    member: int
    # Another response follows. The last one may have neither error nor head.
    more: bool
    error_status: ErrorStatus | None = None
    head: bytes = b""
    # Either all of them or none are in the request's output buffer.
    tensors: Sequence[bytes | memoryview | SharedMemory] = ()


class BatchUpdate(NamedTuple):
    """Progress of one batch."""

    batch: int
    responses: Sequence[Response]
    # The model has finished executing the batch and can execute the next one.
    ready_for_next: bool
    # Requests that the model wants again, in a batch to come; only of iterative sequences.
    rescheduled: Sequence[int] = ()


class ModelLostError(Exception):
    """A RequestModel ended unexpectedly, with everything that it was executing."""


@runtime_checkable
class RequestModel(Protocol):
    """A loaded model that responds in its own time; its instance's thread alone calls it."""

    # Requests may have any number of responses, also after the batch has been executed.
    decoupled: bool
    # Execution of a batch may take no longer; None: no limit.
    execution_timeout_s: float | None

    def file_descriptors(self) -> Sequence[int]:
        """At least one is readable while there are updates to collect."""

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        """Start executing a batch.

        Raises:
            NereidError: the model cannot execute this batch; it continues with others.
            ModelLostError: the model has ended.
        """

    def control_request(self, batch: int, member: int, kind: int) -> None:
        """Cancel, pause or resume a request; kinds as in MemberControl."""

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        """All updates that are there, without waiting.

        ready: those of its file descriptors that are readable. Raises ModelLostError after the last
        update if the model has ended.
        """

    def may_have_begun(self, batch: int) -> bool:
        """For a model that has ended: whether it may have seen this batch."""

    def terminate(self) -> None:
        """End the model at once: its batch takes too long."""

    def restart(self, stopping: Event) -> bool:
        """Start the model again after it was lost, which may take long; False: stopping was set."""

    def close(self) -> None:
        """Free what the model holds."""


@runtime_checkable
class ReadinessReporter(Protocol):
    """A RequestModel that may decide by itself whether it is ready."""

    @property
    def reports_readiness(self) -> bool:
        """Whether the model that is loaded now does."""

    def query_readiness(self, on_response: Callable[[bool | None], None]) -> None:
        """From any thread. on_response is called from any thread: soon with None, as the model is
        being asked, then with its response, or never if the model hangs.
        """
