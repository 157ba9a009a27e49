"""One RPC as its handler sees it, whichever engine carries it.

Nothing here knows of sockets or frames. A handler's exceptions other than RpcError become INTERNAL
with a fixed text; the log has the details.
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
# Slots of each engine's call class. They are not in Call itself, because the call of our own engine
# is a stream as well, and only one of two base classes may have slots.
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
    """One RPC on the server, created by an engine and used on the event loop's thread only.

    This is a protocol with an implementation: the calls of all engines extend it, except that of
    our own engine, which is compiled and may extend compiled classes only.

    A call is `done` after its response, a reset, a lost connection or a passed deadline. From then
    on replying is a silent no-op.
    """

    # `_NONE` by name: a literal would make mypy refuse assignments to the attributes declared here.
    __slots__ = _NONE

    path: str
    peer: str
    # Metadata with lower-case keys; values of keys ending in -bin are bytes.
    metadata: Sequence[tuple[str, str | bytes]]
    # Deadline on time.monotonic()'s clock, or `None`.
    deadline: float | None
    # Callback that is called once if the peer, the connection or the deadline ends the call before
    # its response.
    on_cancel: Callable[[], None] | None
    # Callbacks of streams only, set when the call is opened.
    on_message: Callable[[bytes], None] | None
    on_half_close: Callable[[], None] | None
    # Callback for `buffered_bytes` falling below the low-water mark (64 KiB) after it was above, or
    # to zero.
    on_writable: Callable[[], None] | None
    done: bool
    # Bytes of the request that are charged to the client until the call is done or release() is
    # called.
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
        """Bytes sent that still wait for the peer's window or the socket; sending never blocks."""
        raise NotImplementedError

    @property
    def peer_names(self) -> tuple[str, ...]:
        """Names in the peer's certificate; empty without a certificate."""
        return ()

    @property
    def peer_is_local(self) -> bool:
        """True if the peer is on this host, as far as its address shows."""
        return True

    @property
    def local(self) -> str:
        """Address at which the call arrived; empty if it is not known."""
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
        """Reply to a unary call with a response given in parts.

        The parts are not joined where that can be avoided.
        """
        self.send(b"".join(parts))
        self.finish(trailers=trailers)

    def accept(self) -> None:
        """Send a stream's response headers now, so that the client knows the stream is open."""
        raise NotImplementedError

    def send(self, message: bytes) -> None:
        """Send one message on a stream."""
        raise NotImplementedError

    def send_now(self, message: bytes) -> None:
        """Send one message on a stream to a peer that has nothing else to do.

        The message leaves before this turn of the event loop is over, if the engine can do that.
        """
        self.send(message)

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
        """Run a handler or one of its callbacks; an exception ends the call."""
        try:
            callback(*args)
        except Exception as error:
            self.fail_with(error)

    def mark_done(self) -> None:
        """Mark the call as done, and drop the handler's callbacks."""
        self.done = True
        self.on_cancel = self.on_message = self.on_half_close = self.on_writable = None

    def cancel(self) -> None:
        """End the call because of the peer, the connection or the deadline, and report it."""
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
        """Charge bytes that are kept for the client until release(), or until the call is done.

        Raises:
            RpcError: the bytes exceed a limit.
        """
        return  # mypy would take an empty body for abstract

    def release(self) -> None:
        """Release the charge of hold(): the bytes are freed, or counted elsewhere from now on."""
        return  # mypy would take an empty body for abstract

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:  # noqa: ARG002
        """Replace the server's keepalive options for this connection.

        Pings are sent, and a silent peer is given up, no sooner than the connection's timers run.
        With `interval_s` None no ping is sent, because the peer's liveness is watched by other
        means.
        """
        return  # mypy would take an empty body for abstract

    def pause(self) -> None:
        """Stop reopening the client's flow-control window of a stream."""
        raise NotImplementedError

    def resume(self) -> None:
        """Reopen the client's window after pause()."""
        raise NotImplementedError
