"""Error responses to requests that the scheduler refuses."""

# layout: compiled

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nereid.core.errors import INTERNAL_MESSAGE, Internal, MovedError, NereidError
from nereid.core.wire.messages import InferResponse, MovedResponse, error_status_of
from nereid.observability.logging import request_log_extra

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferRequest

_log = logging.getLogger(__name__)


def refusal_response(request: InferRequest, refusal: NereidError) -> InferResponse:
    """Return the response of a request that was not accepted."""
    if isinstance(refusal, MovedError):
        return MovedResponse(request.id, error=error_status_of(refusal))
    return InferResponse(request.id, error=error_status_of(refusal))


def client_error(error: Exception, request: InferRequest) -> NereidError:
    """Return the error for a client. Any but a NereidError is a bug: log it, and hide its text."""
    if isinstance(error, NereidError):
        return error
    extra = request_log_extra(request.request_id, request.trace_context)
    _log.error("a request could not be admitted", exc_info=error, extra=extra)
    return Internal(INTERNAL_MESSAGE)
