"""The mesh's timeline over HTTP: streamed, in the form of nereid/timeline/wire.py."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from nereid.core.errors import InvalidArgument, NotFound
from nereid.services.gateway.http.endpoints.all_models import check_all_models
from nereid.timeline.wire import CONTENT_TYPE

if TYPE_CHECKING:
    from nereid.services.gateway.data_plane import DataPlane
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.server.call import HttpCall

_OFF: Final = "this gateway records no timeline: it was started with --timeline-seconds=0"
_LAST: Final = "the query 'last' must be a number of seconds above 0, such as ?last=30"
_DEFAULT_S: Final = 30.0
_TYPE: Final = CONTENT_TYPE.encode()


class TimelineEndpoint:
    """The handler of the timeline's route."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._timeline = data_plane.timeline

    async def timeline(self, call: HttpCall, route: Route) -> None:
        timeline = self._timeline
        if timeline is None:
            raise NotFound(_OFF)
        # It shows requests to all of them.
        check_all_models(call, route)
        last_s = _last_s(call.target)
        writable = asyncio.Event()
        writable.set()
        call.on_flow_control = lambda paused: writable.clear() if paused else writable.set()
        parts = timeline.gather(last_s)
        async with aclosing(parts):
            async for part in parts:
                if not call.streamed:
                    # Whatever is wrong has been found by now.
                    call.begin_stream(200, _TYPE)
                call.send_chunk(part)
                await writable.wait()
        call.end_stream()


def _last_s(target: bytes) -> float:
    given = parse_qs(target.partition(b"?")[2].decode("latin-1")).get("last", [""])[-1]
    try:
        last_s = float(given) if given else _DEFAULT_S
    except ValueError:
        raise InvalidArgument(_LAST) from None
    if not 0 < last_s < float("inf"):
        raise InvalidArgument(_LAST)
    return last_s
