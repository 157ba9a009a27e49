"""Detection of peers that read nothing of queued data, or stop sending what they began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


class StallWatch:
    """Watch over one queue of bytes for a peer."""

    __slots__ = ("_limit_s", "_since", "_waiting_bytes")

    def __init__(self, limit_s: float | None) -> None:
        """Create a watch; None means no limit."""
        self._limit_s = limit_s
        self._waiting_bytes = 0
        self._since = 0.0

    def stalled(self, waiting_bytes: int, now: float) -> bool:
        """Return whether the peer has read nothing of its queued bytes for too long."""
        if self._limit_s is None:
            return False
        if not self._waiting_bytes or waiting_bytes < self._waiting_bytes:
            self._since = now
        self._waiting_bytes = waiting_bytes
        return waiting_bytes > 0 and now - self._since >= self._limit_s


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """Limits on how slowly requests may arrive.

    The minimum rate is an average over each window; 0 means no minimum. total_s applies to a whole
    request.
    """

    min_bytes_per_s: float = 0.0
    window_s: float = 30.0
    total_s: float | None = None


NO_UPLOAD_LIMITS = UploadLimits()


class UploadWatch:
    """Watch over one connection while requests arrive."""

    __slots__ = ("_began", "_bytes", "_limits", "_since")

    def __init__(self, limits: UploadLimits) -> None:
        self._limits = limits
        # `None` while nothing is arriving.
        self._began: float | None = None
        self._since = 0.0
        self._bytes = 0

    def restart(self) -> None:
        """Let the next check begin anew, because nothing is arriving."""
        self._began = None

    def overdue(self, received_bytes: int, now: float) -> bool:
        """Return whether data arrives too slowly, or for too long."""
        limits = self._limits
        if self._began is None:
            self._began = self._since = now
            self._bytes = received_bytes
            return False
        if limits.total_s is not None and now - self._began >= limits.total_s:
            return True
        elapsed_s = now - self._since
        if elapsed_s < limits.window_s:
            return False
        slow = received_bytes - self._bytes < limits.min_bytes_per_s * elapsed_s
        self._since = now
        self._bytes = received_bytes
        return slow


class IdleWatch:
    """Watch over a connection that its peer may leave unused."""

    __slots__ = ("_activity", "_limit_s", "_since")

    def __init__(self, limit_s: float | None) -> None:
        """Create a watch; None means no limit."""
        self._limit_s = limit_s
        self._activity: Hashable = None
        self._since = 0.0

    def idle_too_long(self, activity: Hashable, now: float, *, in_use: bool) -> bool:
        """Return whether `activity`, which changes with each use, is unchanged for too long."""
        if self._limit_s is None:
            return False
        if in_use or activity != self._activity:
            self._activity, self._since = activity, now
        return now - self._since >= self._limit_s


class ProgressWatch:
    """Watch over items that arrive in pieces."""

    __slots__ = ("_limit_s", "_seen")

    def __init__(self, limit_s: float | None) -> None:
        """Create a watch; None means no limit."""
        self._limit_s = limit_s
        self._seen: dict[int, tuple[Hashable, float]] = {}

    def stalled(self, progress: Mapping[int, Hashable], now: float) -> list[int]:
        """Return the numbers of items without progress for too long.

        `progress` maps an item's number to a value that changes with progress. An item that is
        missing in a check starts anew.
        """
        seen = {}
        stalled = []
        for number, current in progress.items():
            before, since = self._seen.get(number, (None, now))
            if before != current:
                since = now
            elif self._limit_s is not None and now - since >= self._limit_s:
                stalled.append(number)
            seen[number] = (current, since)
        self._seen = seen
        return stalled
