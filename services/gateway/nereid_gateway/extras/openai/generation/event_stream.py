"""Server-sent events of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid_gateway.fronts.http.endpoints.generate import EVENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid_gateway.server.call import HttpCall

Result = TypeVar("Result")

# X-Accel-Buffering keeps proxies from buffering events.
_HEADERS: Final = b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
_COMMENT: Final = b":\n\n"


class EventStream:
    """Events of a call, which begin with the first one: errors before it are responses."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self.begun = False

    def send(self, events: bytes) -> None:
        """Send events, each with its empty line."""
        call = self._call
        if not self.begun:
            self.begun = True
            call.begin_stream(200, EVENT_STREAM, _HEADERS)
            call.keepalive_chunk = _COMMENT
        call.send_chunk(events)

    def end(self, events: bytes = b"") -> None:
        """Send the last events, and end the response."""
        self.send(events)
        self._call.end_stream()

    async def finish(
        self, work: Awaitable[Result], encode_error: Callable[[NereidError], bytes]
    ) -> Result:
        """Return the result of work. Its error becomes an event if events were sent before."""
        try:
            return await work
        except NereidError as error:
            if not self.begun:
                raise
            self.end(encode_error(error))
            # The call cannot be repeated with another version of the model.
            raise Internal(error.message) from error
        except Exception:
            if self.begun:
                self.end(encode_error(Internal(INTERNAL_MESSAGE)))
            raise
