"""Refusals of calls, and their reasons. Guards translate them to each protocol."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Reason(Enum):
    """Reasons for refusals. The values are labels in the metrics."""

    NO_CREDENTIALS = "no_credentials"
    INVALID_CREDENTIALS = "invalid_credentials"
    NOT_PERMITTED = "not_permitted"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    # Too many invalid credentials have come from one address.
    ATTEMPTS = "attempts"
    # The API requires a header, or is closed. Refusals for these two reasons are not counted.
    RESTRICTED = "restricted"
    CLOSED = "closed"


class Refusal(NamedTuple):
    """Error that the client gets in place of a response."""

    reason: Reason
    message: str
    # A retry may succeed after this time. With 0, a retry cannot succeed unless something changes.
    retry_after_s: float = 0.0


class CallRefused(Exception):
    """Raised when a call is refused. `detail` is for the log and not shown to the client."""

    def __init__(self, refusal: Refusal, detail: str = "") -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.detail = detail


NO_CREDENTIALS: Final = Refusal(
    Reason.NO_CREDENTIALS,
    "this API needs credentials: send 'Authorization: Bearer <API key or token>'"
    " or 'x-api-key: <API key>'",
)
INVALID_CREDENTIALS: Final = Refusal(
    Reason.INVALID_CREDENTIALS, "the API key or token is not valid here"
)
EXPIRED: Final = Refusal(Reason.INVALID_CREDENTIALS, "the token has expired")
TOO_MANY_ATTEMPTS: Final = Refusal(
    Reason.ATTEMPTS, "too many invalid tokens came from this address; try again later", 1.0
)
