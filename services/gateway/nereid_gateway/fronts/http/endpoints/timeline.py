"""Timeline of the mesh over HTTP: streamed in the format of nereid/timeline/wire.py."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NotFound
from nereid.timeline.wire import CONTENT_TYPE
from nereid_gateway.fronts.http.endpoints.all_models import check_all_models
from nereid_gateway.server.query import Query

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

_OFF: Final = "this gateway records no timeline: it was started with --timeline-seconds=0"
_DEFAULT_S: Final = 30.0
# Seconds. No gateway records for longer.
_MAX_S: Final = 1_000_000_000
_TYPE: Final = CONTENT_TYPE.encode()


class TimelineEndpoint:
    """Handler of the timeline's route."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._timeline = data_plane.timeline

    async def timeline(self, call: HttpCall, route: Route) -> None:
        """Stream the records of the last seconds to the client."""
        timeline = self._timeline
        if not timeline.records:
            raise NotFound(_OFF)
        check_all_models(call, route)
        last_s = Query(call.target, ("last",)).seconds("last", _DEFAULT_S, _MAX_S)
        writable = asyncio.Event()
        writable.set()
        call.on_flow_control = lambda paused: writable.clear() if paused else writable.set()
        parts = timeline.gather(last_s)
        async with aclosing(parts):
            async for part in parts:
                if not call.streamed:
                    # gather() raises its errors before the first part, so the response can begin
                    # now.
                    call.begin_stream(200, _TYPE)
                call.send_chunk(part)
                await writable.wait()
        call.end_stream()
