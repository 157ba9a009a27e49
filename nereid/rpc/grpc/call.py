"""One RPC as its handler sees it. The interface is the same for all engines.

If a handler raises anything but RpcError, the call ends with INTERNAL and a fixed text.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from nereid.rpc.grpc.metadata import first_value
from nereid.rpc.grpc.status import RpcError, Status
from nereid.rpc.net.limits.budget import NO_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.rpc.net.limits.budget import Account

log = logging.getLogger("nereid.rpc")

_INTERNAL_TEXT = "internal error"
_NONE: tuple[str, ...] = ()
# Each engine's call class declares these slots.
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
    """End a call whose handler raised an exception."""
    if isinstance(error, RpcError):
        call.fail(error.status, error.message, error.trailers)
        return
    log.error("handler of %s failed", call.path, exc_info=error)
    call.fail(Status.INTERNAL, _INTERNAL_TEXT)


class Call(Protocol):
    """One RPC on the server, used only in the event loop's thread.

    Our own engine's call class does not extend Call: it is compiled, and a compiled class can only
    extend compiled classes. Replies to a call that is `done` are ignored.
    """

    # With a literal `()`, mypy refuses assignments to the attributes below.
    __slots__ = _NONE

    path: str
    peer: str
    # Keys are lower-case. The values of keys that end in -bin are bytes.
    metadata: Sequence[tuple[str, str | bytes]]
    # On time.monotonic()'s clock; `None` means no deadline.
    deadline: float | None
    # Called once if the peer, connection or deadline ends the call before the response.
    on_cancel: Callable[[], None] | None
    # For streams only; the handler sets them when the call is opened.
    on_message: Callable[[bytes], None] | None
    on_half_close: Callable[[], None] | None
    # Called when `buffered_bytes` falls below the low-water mark (64 KiB), or to zero.
    on_writable: Callable[[], None] | None
    done: bool
    # Bytes charged to the client until release() or the end of the call.
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
        """Sent bytes that wait for the peer's window or the socket. Sending never blocks."""
        raise NotImplementedError

    @property
    def peer_names(self) -> tuple[str, ...]:
        """Names in the peer's certificate; empty without a certificate."""
        return ()

    @property
    def peer_is_local(self) -> bool:
        """True if the peer's address shows that the peer is on this host."""
        return True

    @property
    def local(self) -> str:
        """Address at which the call arrived; empty if unknown."""
        return ""

    def get(self, key: str) -> str | bytes | None:
        """Return the first value of a metadata key, or None."""
        return first_value(self.metadata, key)

    def reply(self, message: bytes) -> None:
        """Send the response of a unary call and end the call with OK."""
        raise NotImplementedError

    def reply_parts(
        self,
        parts: Sequence[bytes | memoryview],
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """Reply to a unary call with parts. If possible, the engine does not join the parts."""
        self.send(b"".join(parts))
        self.finish(trailers=trailers)

    def accept(self) -> None:
        """Send the response headers of a stream now, so that the client knows it is open."""
        raise NotImplementedError

    def send(self, message: bytes, at_once: bool = False) -> None:
        """Send one message of a stream.

        at_once: write it before this turn of the event loop is over, if the engine can.
        """
        raise NotImplementedError

    def finish(
        self,
        status: Status = Status.OK,
        message: str = "",
        trailers: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """End the call with a status and trailers; no-op if the call is done."""
        raise NotImplementedError

    def fail(
        self, status: Status, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        """End the call with an error status; no-op if the call is done."""
        self.finish(status, message, trailers)

    def fail_with(self, error: Exception) -> None:
        """End the call because its handler raised `error`."""
        fail_with(self, error)

    def run_callback(self, callback: Callable[..., None], *args: object) -> None:
        """Run a handler or one of its callbacks. An exception ends the call."""
        try:
            callback(*args)
        except Exception as error:
            self.fail_with(error)

    def mark_done(self) -> None:
        """Mark the call as done, and drop its callbacks."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None

    def cancel(self) -> None:
        """End the call after a reset, a lost connection or a passed deadline; call on_cancel."""
        if not self.done:
            callback = self.on_cancel
            self.mark_done()
            if callback is not None:
                self.run_callback(callback)

    @property
    def account(self) -> Account:
        """Account that is charged for bytes kept for the client."""
        return NO_ACCOUNT

    def hold(self, size_bytes: int) -> None:  # noqa: ARG002
        """Charge kept bytes until release() or the call's end; raise RpcError over a limit."""
        return  # mypy would take an empty body for abstract

    def release(self) -> None:
        """Release the charge of hold(): the bytes are freed or counted elsewhere."""
        return  # mypy would take an empty body for abstract

    def claim_connection(self) -> None:
        """Refuse further calls of this call's connection; RpcError if the engine cannot."""
        raise RpcError(Status.UNIMPLEMENTED, "the connection has other users")

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:  # noqa: ARG002
        """Replace this connection's keepalive options. An interval of None stops the pings.

        The connection's timers apply the limits, so the actual times may be longer.
        """
        return  # mypy would take an empty body for abstract

    def pause(self) -> None:
        """Stop reopening the client's flow-control window, so that the client has to pause."""
        raise NotImplementedError

    def resume(self) -> None:
        """Reopen the client's flow-control window after pause()."""
        raise NotImplementedError
