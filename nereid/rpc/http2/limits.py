"""What one side of a connection allows the other."""

from __future__ import annotations

from dataclasses import dataclass

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one connection; what is marked as a server's means nothing to a client."""

    max_message_bytes: int = (1 << 31) - 1
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    max_frame_bytes: int = 1 << 18
    max_header_list_bytes: int = 16_384
    # How many frames are read before other connections have their turn; by far most clients' reads
    # bring fewer.
    max_frames_per_turn: int = 96
    keepalive_interval_s: float | None = None
    keepalive_timeout_s: float = 20.0
    # Whether peers without any call in flight are pinged as well.
    keepalive_without_calls: bool = True
    # A server's: how long a client may read nothing of a response before its connection or, for
    # want of a window, its unary call is ended. What is queued for streams is bounded by their
    # owners.
    write_timeout_s: float | None = None
    # A server's: how long nothing may arrive of an incomplete unary request; None: for ever.
    read_timeout_s: float | None = None
    # A server's: what incomplete requests and messages must bring beside that.
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # A server's: while more than this of unary responses is queued for a client, it may send no
    # more. Done by withholding the connection's window: its WINDOW_UPDATEs must still be read.
    max_unsent_bytes: int | None = None
    # How many times as large as its compressed form a message may be, past 64 MiB; None: any.
    max_inflation_ratio: float | None = None
    # No flood budget. A client trusts the server it chose; a server trusts no client.
    trusts_peer: bool = False
