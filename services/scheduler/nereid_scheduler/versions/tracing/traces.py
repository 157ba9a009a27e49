"""Base class of the readers of sampled requests' records; there is one for each export format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid_scheduler.batching.policies.latency_target import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.core.requests.request_trace import RequestTrace


class RefusedRequest(NamedTuple):
    """Request that was refused, with the time of its arrival and the error."""

    request: InferRequest
    name: str
    version: str
    since_ns: int
    error: str


class Traces:
    """Reader of one scheduler's sampled requests. This class samples none and exports nothing."""

    def begin(self, request: InferRequest) -> RequestTrace | None:  # noqa: ARG002 - of subclasses
        """Return the record for a request that has arrived; `None` if it is not sampled."""
        return None

    def refused(self, refusal: RefusedRequest) -> None:
        """Export the refusal of a sampled request."""

    def copy_response(self, trace: RequestTrace, response: InferResponse) -> None:
        """Copy to the record what will be exported of a response, while its memory is valid."""

    def end_batch(
        self, sent: SentBatch, execution: Execution, target: LatencyTarget | None
    ) -> None:
        """Export a batch that has ended, and the attempts of its sampled members."""

    def end_request(
        self,
        trace: RequestTrace,
        entry: Entry,
        model: tuple[str, int],
        response: InferResponse | None,
        now_ns: int,
    ) -> None:
        """Export a request that has ended with this response; `None` if it was cancelled."""

    def close(self) -> None:
        """Export what is left, within a limited time. This blocks, so call it in a thread."""


NO_TRACES: Final = Traces()
