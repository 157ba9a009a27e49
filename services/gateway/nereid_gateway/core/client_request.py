"""Requests of clients, with what only their gateway knows."""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.wire.messages import InferRequest

if TYPE_CHECKING:
    from nereid.core.wire.messages import ErrorStatus, Parameter, Payload
    from nereid_gateway.core.request_record import RequestRecord


class ClientRequest(InferRequest):
    """Inference request of a client.

    The fields have defaults in place of an __init__, which would cost each request 163 ns.
    """

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
        return _unpickled, (
            self.head,
            self.payloads,
            self.request_id,
            self.parameters,
            self.priority,
            self.timeout_us,
            self.error_status,
            self.wants_empty_final,
        )


def _unpickled(  # noqa: PLR0913, PLR0917 - a record
    head: bytes,
    payloads: list[Payload],
    request_id: str,
    parameters: dict[str, Parameter] | None,
    priority: int,
    timeout_us: int,
    error_status: ErrorStatus | None,
    wants_empty_final: bool,
) -> ClientRequest:
    request = ClientRequest(
        0, head, payloads, request_id, parameters, priority, timeout_us, error_status=error_status
    )
    request.wants_empty_final = wants_empty_final
    return request
