"""Counters of models that do not fall on this gateway's pages when a scheduler is lost, or a model
moves: what schedulers have counted is asked for all the time, kept, and given to the next ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError, Unavailable, Unimplemented
from nereid.core.retry_after import DEFAULT_MS
from nereid.mesh_routing.control_calls import call_any, call_scheduler
from nereid.observability.count_exchange import CountKeeper
from nereid.observability.metrics_page import replace_series
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.plane.control.group_counts import GroupCounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.mesh_routing.route import MeshAccess
    from nereid.process.gateway_group import GatewayGroup

# What a scheduler has counted since the last look is lost if it is killed.
_INTERVAL_S: Final = 2.0
# A pause lasts this many times as long as the look before it, so that a scheduler with many busy
# models spends at most 2 % of its time on looks.
_PAUSES: Final = 49
# A look takes long where a scheduler hangs: no pause is longer than this.
_LONGEST_PAUSE_S: Final = 5.0
_ATTEMPTS: Final = 4
_METHOD: Final = "Counts"


class ModelCounts:
    """Looks at what schedulers have counted, and completes their pages with what it has kept."""

    def __init__(
        self,
        mesh: MeshAccess,
        timeout_s: float,
        interval_s: float = _INTERVAL_S,
        *,
        group: GatewayGroup | None = None,
    ) -> None:
        """timeout_s: of a look. group: of the gateways whose pages one client may read."""
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._keeper = CountKeeper()
        self._turn = asyncio.Lock()
        self._group = None if group is None else GroupCounts(group, self._respond)
        self._group_turn = asyncio.Lock()
        # The others may know more of a scheduler that is gone.
        self._group_due = False
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look from now on, whether or not somebody asks for a page; raises OSError."""
        if self._group is not None:
            await self._group.start()
        self._looking = asyncio.ensure_future(self._look_forever())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._group is not None:
            await self._group.close()

    async def complete_metrics(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """A MetricsResponse that read() gives, with all that is counted."""
        response = await self._read(read)
        shared = [each.exposition for each in self._keeper.store.shared() if each.exposition]
        if not shared:
            return response
        page = pb.MetricsResponse.FromString(response)
        page.exposition = replace_series(page.exposition, shared)
        return page.SerializeToString()

    async def complete_statistics(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """A ModelStatisticsResponse that read() gives, with all that is counted."""
        response = await self._read(read)
        shared: defaultdict[tuple[str, str], list[kserve_pb2.ModelStatistics]] = defaultdict(list)
        for each in self._keeper.store.shared():
            shared[each.statistics.name, each.statistics.version].append(each.statistics)
        if not shared:
            return response
        page = kserve_pb2.ModelStatisticsResponse.FromString(response)
        for model in page.model_stats:
            found = shared.get((model.name, model.version), ())
            # Of several, in different namespaces, nothing says which one is meant.
            if len(found) == 1:
                usage = list(model.memory_usage)
                model.CopyFrom(found[0])
                model.memory_usage.extend(usage)
        return page.SerializeToString()

    async def _read(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """A page of which all is kept that it shows: what it says was looked at after it, of the
        same schedulers.
        """
        for _ in range(_ATTEMPTS):
            before = self._keeper.schedulers
            response = await read()
            try:
                await self.look()
            except Unimplemented:
                # Schedulers of an older release.
                return response
            if self._keeper.schedulers == before:
                return response
        raise Unavailable("schedulers come and go; try again", retry_after_ms=DEFAULT_MS)

    async def _look_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s, before = loop.time(), self._keeper.schedulers
            with contextlib.suppress(NereidError):
                await self.look()
            if self._keeper.schedulers != before:
                # Now it is known what the new one lacks.
                continue
            pause_s = min((loop.time() - began_s) * _PAUSES, _LONGEST_PAUSE_S)
            await asyncio.sleep(max(self._interval_s, pause_s))

    async def look(self) -> None:
        """Get what has been counted since the last look, and give what nobody else has."""
        await self._ask_schedulers()
        if self._group is not None:
            async with self._group_turn:
                if self._group_due:
                    self._group_due = False
                    for each in await self._group.read():
                        self._keeper.add(each)

    async def _ask_schedulers(self) -> None:
        async with self._turn:
            before = self._keeper.schedulers
            request = self._keeper.request().SerializeToString()
            response = await call_any(
                self._mesh.channels(),
                lambda channel: call_scheduler(channel, _METHOD, request, self._timeout_s),
                is_read=True,
            )
            self._keeper.update(pb.CountsResponse.FromString(response))
            self._group_due |= self._keeper.schedulers != before

    async def _respond(self) -> pb.CountsResponse:
        """What this gateway knows. Models that were unloaded are not among it."""
        with contextlib.suppress(NereidError):
            await self._ask_schedulers()
        counts = pb.SchedulerCounts(changed=self._keeper.store.all())
        return pb.CountsResponse(schedulers=[counts])

    def add(self, response: bytes) -> None:
        """Keep what a scheduler has counted that ends now: a CountsResponse."""
        self._keeper.add(pb.CountsResponse.FromString(response))
