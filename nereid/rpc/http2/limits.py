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
    # Maximum number of frames to read before other connections have their turn. Most clients send
    # far fewer frames at once.
    max_frames_per_turn: int = 96
    keepalive_interval_s: float | None = None
    keepalive_timeout_s: float = 20.0
    # True if peers without calls in flight are pinged as well.
    keepalive_without_calls: bool = True
    # Server only: maximum seconds for which a client may read nothing of a response. After that,
    # the connection is ended. If only the window of a call is exhausted, only the call is ended.
    # The windows of streams are checked only if more than stream_window_bytes are queued: the
    # owners of streams limit smaller queues. `None` means no limit.
    write_timeout_s: float | None = None
    # Server only: maximum seconds for which no data of an incomplete unary request may arrive;
    # `None` means no limit.
    read_timeout_s: float | None = None
    # Server only: minimum rate and maximum time for incomplete requests and messages.
    upload: UploadLimits = NO_UPLOAD_LIMITS
    # Server only: maximum bytes of unary responses that are queued for a client. Beyond the limit
    # the client may send no more content. To enforce this, the connection's window is not reopened.
    # The socket is still read, because the client's WINDOW_UPDATEs arrive there.
    max_unsent_bytes: int | None = None
    # Maximum ratio of a message's size to its compressed size. It applies to messages larger than
    # 64 MiB; `None` means no limit.
    max_inflation_ratio: float | None = None
    # True if the connection has no flood budget. A client trusts the server that it chose; a server
    # trusts no client.
    trusts_peer: bool = False
