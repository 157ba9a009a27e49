"""Hints in a response when to retry: HTTP's Retry-After and gRPC's push-back (gRFC A6)."""

from __future__ import annotations

from math import ceil
from random import random
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Unavailable
from nereid.core.retry_after import DEFAULT_MS, spread_ms, whole_seconds

if TYPE_CHECKING:
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import ErrorStatus
    from nereid.rpc.net.limits.budget import OverBudgetError

    Trailers = tuple[tuple[str, str], ...]

_PUSHBACK: Final = "grpc-retry-pushback-ms"


def _spread_ms(after_ms: int) -> int:
    return spread_ms(after_ms, random())  # noqa: S311 - no secret


def retry_line(error: ErrorStatus | NereidError) -> bytes:
    """Return a header line if a retry may help after this error, otherwise nothing."""
    after_ms = error.retry_after_ms
    return _line(whole_seconds(_spread_ms(after_ms))) if after_ms else b""


def retry_trailers(error: ErrorStatus | NereidError) -> Trailers:
    """Return trailers if a retry may help after this error, otherwise none."""
    after_ms = error.retry_after_ms
    return _pushback(_spread_ms(after_ms)) if after_ms else ()


def over_budget(error: OverBudgetError) -> Unavailable:
    """Return the error for a client that holds too many bytes. A retry may help."""
    return Unavailable(error.message, retry_after_ms=DEFAULT_MS)


def drain_trailers() -> Trailers:
    """Return trailers of a call that is refused because the gateway is shutting down."""
    return _pushback(_spread_ms(DEFAULT_MS))


def exact_line(after_s: float) -> bytes:
    """Return a header line with the known time after which the next request is permitted."""
    return _line(ceil(after_s))


def exact_trailers(after_s: float) -> Trailers:
    """Return trailers with the known time after which the next request is permitted."""
    return _pushback(ceil(after_s * 1000))


def _line(after_s: int) -> bytes:
    return b"Retry-After: %d\r\n" % after_s


def _pushback(after_ms: int) -> Trailers:
    return ((_PUSHBACK, str(after_ms)),)
