"""Shares of clients in a limit, of bytes or of places.

No number of clients can keep out another one. When only the last part of a limit is free, clients
share it: with n clients, one may have as much as an n-th of what it leaves. Clients who come one
after another and take all that they may leave 1/(n + 1) of that part to the next one.
"""

from __future__ import annotations

from typing import Final

# Part of each limit that clients share.
SHARED: Final = 0.125


def may_have(amount: float, *, left: float, limit: float, clients: int) -> bool:
    """Return whether a client may have this amount of a limit and leave only `left` of it."""
    return left >= limit * SHARED or amount * clients <= left
