"""Requests of clients, with what only their gateway knows."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.wire.messages import InferRequest

if TYPE_CHECKING:
    from nereid_gateway.core.request_record import RequestRecord


class ClientRequest(InferRequest):
    """Inference request of a client.

    The fields have defaults in place of an __init__, which would cost each request 163 ns.
    """

    # Headers or metadata of the call, by which callers may be kept together: names are lower-case.
    headers: Any = None
    # Account or principal to charge for the pending request.
    sender: Any = None
    # Clients' shared memory regions that the request names.
    region_use: Any = None
    # True if the client wants a decoupled model's empty final response.
    wants_empty_final: bool = False
    # Set from the front to the step that fills it in.
    record: RequestRecord | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle this compiled class: all that a decoder process sets."""
        arguments = self.head, self.payloads, self.request_id, self.parameters, self.priority
        rest = self.timeout_us, None, b"", self.error_status
        return ClientRequest, (0, *arguments, *rest), self.wants_empty_final

    def __setstate__(self, wants_empty_final: bool) -> None:
        """Set what is no argument."""
        self.wants_empty_final = wants_empty_final
