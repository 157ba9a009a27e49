"""Limits that one side of a connection sets for the peer."""

# layout: not compiled, options extend it

from __future__ import annotations

from dataclasses import dataclass

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one connection. A client ignores the limits that say "server only"."""

    max_message_bytes: int = (1 << 31) - 1
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    max_frame_bytes: int = 1 << 18
    max_header_list_bytes: int = 16_384
    # Frames to read before other connections have their turn.
    max_frames_per_turn: int = 96
    keepalive_interval_s: float | None = None
    keepalive_timeout_s: float = 20.0
    keepalive_without_calls: bool = True
    # Server only: how long a client may read nothing. Then the connection ends, or only the call if
    # just its window is exhausted. Streams are checked if more than stream_window_bytes are queued.
    # `None` means no limit.
    write_timeout_s: float | None = None
    # Server only: how long an incomplete unary request may bring no data; `None` means no limit.
    read_timeout_s: float | None = None
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # Server only: limit for queued unary responses. Beyond it, the connection's window stays
    # closed, but the socket is read for the client's WINDOW_UPDATEs.
    max_unsent_bytes: int | None = None
    # Ratio of a message's size to its compressed size, above 64 MiB; `None` means no limit.
    max_inflation_ratio: float | None = None
    # True switches the flood budget off: a client trusts the server that it chose.
    trusts_peer: bool = False
