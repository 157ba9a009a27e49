"""Two requests told apart: what was decoded, and what has come through a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

_REPORTED = ("head", "payloads", "request_id", "priority", "timeout_us", "error_status")


def shown(request: InferRequest) -> list[object]:
    """What is told of it; by repr, as NaN is not equal to itself. A map has no order."""
    parameters = sorted((request.parameters or {}).items())
    return [repr(parameters), *(repr(getattr(request, name)) for name in _REPORTED)]
