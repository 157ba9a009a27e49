"""Limits that one side of a connection sets for the other."""

# layout: not compiled, options extend it

from __future__ import annotations

from dataclasses import dataclass

from nereid.rpc.net.limits.stall_detection import NO_UPLOAD_LIMITS, UploadLimits


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one connection; a client ignores the limits that are marked as a server's."""

    max_message_bytes: int = (1 << 31) - 1
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 16 << 20
    max_frame_bytes: int = 1 << 18
    max_header_list_bytes: int = 16_384
    # Maximum number of frames read before other connections have their turn. Most clients' reads
    # bring far fewer.
    max_frames_per_turn: int = 96
    keepalive_interval_s: float | None = None
    keepalive_timeout_s: float = 20.0
    # True if peers without any call in flight are pinged as well.
    keepalive_without_calls: bool = True
    # A server's limit of the time for which a client may read nothing of a response. Then its
    # connection is ended or, if only the window is missing, its unary call. Queues of streams are
    # bounded by their owners.
    write_timeout_s: float | None = None
    # A server's limit of the time for which nothing may arrive of an incomplete unary request;
    # `None` means no limit.
    read_timeout_s: float | None = None
    # A server's minimum rate and maximum time of incomplete requests and messages.
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # A server's limit of unary responses' bytes that are queued for a client; beyond it the client
    # may send no more. The connection's window is withheld for that, because its WINDOW_UPDATEs
    # must still be read.
    max_unsent_bytes: int | None = None
    # Maximum ratio of a message's size to its compressed size, for messages beyond 64 MiB; `None`
    # means no limit.
    max_inflation_ratio: float | None = None
    # True if the connection has no flood budget. A client trusts the server it chose; a server
    # trusts no client.
    trusts_peer: bool = False
