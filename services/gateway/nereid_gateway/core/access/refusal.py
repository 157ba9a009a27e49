"""Why a call is refused. Pure; how each protocol says it is the guards' business."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Reason(Enum):
    """The kinds of refusals; a value is the metric's label."""

    NO_CREDENTIALS = "no_credentials"
    INVALID_CREDENTIALS = "invalid_credentials"
    NOT_PERMITTED = "not_permitted"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    # Of invalid credentials from one address.
    ATTEMPTS = "attempts"
    # Not about credentials, and not counted: the API requires a header, or is closed.
    RESTRICTED = "restricted"
    CLOSED = "closed"


class Refusal(NamedTuple):
    """What the client gets instead of a response."""

    reason: Reason
    message: str
    # When a retry may succeed; 0: not without a change.
    retry_after_s: float = 0.0


class CallRefused(Exception):
    """Raised in place of a response; detail: what only the log says."""

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
