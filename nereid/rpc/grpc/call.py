"""What a handler sees of one RPC, whichever engine carries it.

Nothing here knows of sockets or frames. A handler's exceptions other than RpcError become INTERNAL
with a fixed text; the log has the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from nereid.rpc.grpc.metadata import first_value
from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.rpc.net.limits.budget import Account

log = logging.getLogger("nereid.rpc")

_INTERNAL_TEXT = "internal error"
_NONE: tuple[str, ...] = ()
# What each engine's call has slots for. Not in Call itself: our own engine's is a stream as well,
# and only one of two bases may have slots.
CALL_SLOTS: tuple[str, ...] = (
    "deadline",
    "done",
    "held_bytes",
    "metadata",
    "on_cancel",
    "on_half_close",
    "on_message",
    "on_writable",
    "path",
    "peer",
)


def fail_with(call: Call, error: Exception) -> None:
    """End a call whose handler raised."""
    if isinstance(error, RpcError):
        call.fail(error.status, error.message, error.trailers)
        return
    log.error("handler of %s failed", call.path, exc_info=error)
    call.fail(Status.INTERNAL, _INTERNAL_TEXT)


class Call(Protocol):
    """One RPC on the server. Used from the event loop's thread only; created by an engine.

    A protocol with an implementation: engines' calls extend it, except for that of our own engine,
    which is compiled and may extend compiled classes only.

    Once `done`, which is after the response, a reset, a broken connection or a passed deadline,
    replying is a silent no-op.
    """

    # By a name, as a literal would make mypy refuse assignments to what is declared here.
    __slots__ = _NONE

    path: str
    peer: str
    # Lower-case keys; values of keys ending in -bin are bytes.
    metadata: Sequence[tuple[str, str | bytes]]
    # On time.monotonic()'s clock.
    deadline: float | None
    # Called once, when the peer, the connection or the deadline ended the call before its response
    # was given.
    on_cancel: Callable[[], None] | None
    # Streams only, set when the call is opened.
    on_message: Callable[[bytes], None] | None
    on_half_close: Callable[[], None] | None
    # `buffered_bytes` fell below the low-water mark (64 KiB) after it was above, or to nothing.
    on_writable: Callable[[], None] | None
    done: bool
    # Of the request's, charged to the client until the call is done or they are released.
    held_bytes: int

    def __init__(
        self,
        path: str,
        peer: str,
        metadata: Sequence[tuple[str, str | bytes]],
        deadline: float | None = None,
    ) -> None:
        self.path = path
        self.peer = peer
        self.metadata = metadata
        self.deadline = deadline
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None
        self.done = False
        self.held_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Sent, but still waiting for the peer's window or the socket. Sending never blocks."""
        raise NotImplementedError

    @property
    def peer_names(self) -> tuple[str, ...]:
        """The names in the peer's certificate; none without one."""
        return ()

    @property
    def peer_is_local(self) -> bool:
        """Whether the peer is of this host, as far as its address says."""
        return True

    @property
    def local(self) -> str:
        """The address at which the call arrived; empty: not known."""
        return ""

    def get(self, key: str) -> str | bytes | None:
        """The first value of a metadata key."""
        return first_value(self.metadata, key)

    def reply(self, message: bytes) -> None:
        """Unary: the response and OK, in one piece."""
        raise NotImplementedError

    def reply_parts(
        self,
        parts: Sequence[bytes | memoryview],
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Unary: a response given in parts, which are not joined where that can be avoided."""
        self.send(b"".join(parts))
        self.finish(trailers=trailers)

    def accept(self) -> None:
        """Streams: send the response's headers now, so that the client knows the stream is open."""
        raise NotImplementedError

    def send(self, message: bytes) -> None:
        """Streams: one message."""
        raise NotImplementedError

    def send_now(self, message: bytes) -> None:
        """Streams: one message, for a peer that has nothing else to do. It leaves before this turn
        of the event loop is over, if the engine can do that.
        """
        self.send(message)

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        raise NotImplementedError

    def fail(
        self, status: Status, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        self.finish(status, message, trailers)

    def fail_with(self, error: Exception) -> None:
        """The handler raised."""
        fail_with(self, error)

    def run_callback(self, callback: Callable[..., None], *args: object) -> None:
        """Run a handler or a callback of one; what it raises ends the call."""
        try:
            callback(*args)
        except Exception as error:
            self.fail_with(error)

    def mark_done(self) -> None:
        """No response may follow: drop the handler's callbacks."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None

    def cancel(self) -> None:
        """The peer, the connection or the deadline ended the call."""
        if not self.done:
            callback = self.on_cancel
            self.mark_done()
            if callback is not None:
                self.run_callback(callback)

    @property
    def account(self) -> Account | None:
        """Where to charge what is kept for the client; None: it is not counted."""
        return None

    def hold(self, size_bytes: int) -> None:  # noqa: ARG002
        """Charge what is kept for the client until release(), or until the call is done; raises
        RpcError if that is too much.
        """
        return  # else mypy holds it to be abstract

    def release(self) -> None:
        """The request's bytes are not held any more, or counted elsewhere from now on."""
        return  # else mypy holds it to be abstract

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:  # noqa: ARG002
        """When to ping the peer of this connection, and to give it up, in place of the server's
        options; no sooner than its timers run. interval_s None: never, as its liveness is watched
        by other means.
        """
        return  # else mypy holds it to be abstract

    def pause(self) -> None:
        """Streams: stop giving the client's window back."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError
