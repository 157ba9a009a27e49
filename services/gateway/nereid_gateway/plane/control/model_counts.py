"""Keeps models' counters, so that they never fall on this gateway's pages.

They would fall when a scheduler is lost or a model moves. So the gateway always reads the
schedulers' counts, and gives them to the schedulers that take over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError, Unavailable, Unimplemented
from nereid.core.retry_after import DEFAULT_MS
from nereid.mesh_routing.control_calls import call_any, call_scheduler
from nereid.observability.counts.count_exchange import CountKeeper
from nereid.observability.metrics_page import replace_series
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.plane.control.group_counts import GroupCounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nereid.mesh_routing.access import MeshAccess
    from nereid.process.gateway_group import GatewayGroup

# Seconds. If a scheduler is killed, its counts since the last read are lost.
_INTERVAL_S: Final = 2.0
# A pause is this many times as long as the read before it, so reads take at most 2 % of a
# scheduler's time.
_PAUSES: Final = 49
# Seconds. A read takes long if a scheduler hangs.
_MAX_PAUSE_S: Final = 5.0
_ATTEMPTS: Final = 4
_METHOD: Final = "Counts"


class ModelCounts:
    """Reads and keeps the schedulers' counts, and completes the schedulers' pages with them."""

    def __init__(
        self,
        mesh: MeshAccess,
        timeout_s: float,
        interval_s: float = _INTERVAL_S,
        *,
        group: GatewayGroup | None = None,
    ) -> None:
        """Prepare reads. group: the gateways that share this gateway's ports."""
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._keeper = CountKeeper()
        self._turn = asyncio.Lock()
        self._group = None if group is None else GroupCounts(group, self._respond)
        self._group_turn = asyncio.Lock()
        # True if other gateways may have counts of a lost scheduler that this gateway lacks.
        self._group_due = False
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read. Raises OSError if the group's socket cannot be bound."""
        if self._group is not None:
            await self._group.start()
        self._reading = asyncio.ensure_future(self._read_forever())

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._group is not None:
            await self._group.close()

    async def complete_metrics(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Call read(), and return its MetricsResponse with all kept counts added."""
        response = await self._read(read)
        shared = [counts.exposition for counts in self._keeper.store.shared() if counts.exposition]
        if not shared:
            return response
        page = pb.MetricsResponse.FromString(response)
        page.exposition = replace_series(page.exposition, shared)
        return page.SerializeToString()

    async def complete_statistics(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Call read(), and return its ModelStatisticsResponse with all kept counts added."""
        response = await self._read(read)
        shared: defaultdict[tuple[str, str], list[kserve_pb2.ModelStatistics]] = defaultdict(list)
        for counts in self._keeper.store.shared():
            statistics = counts.statistics
            shared[statistics.name, statistics.version].append(statistics)
        if not shared:
            return response
        page = kserve_pb2.ModelStatisticsResponse.FromString(response)
        for model in page.model_stats:
            candidates = shared.get((model.name, model.version), ())
            # This page cannot tell models of one name in different namespaces apart.
            if len(candidates) == 1:
                usage = list(model.memory_usage)
                model.CopyFrom(candidates[0])
                model.memory_usage.extend(usage)
        return page.SerializeToString()

    async def _read(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Call read(), and return its page once all counts on the page are kept."""
        for _ in range(_ATTEMPTS):
            before = self._keeper.schedulers
            response = await read()
            try:
                await self.read_counts()
            except Unimplemented:
                # Schedulers of an older release do not have the call Counts.
                return response
            if self._keeper.schedulers == before:
                return response
        raise Unavailable("schedulers come and go; try again", retry_after_ms=DEFAULT_MS)

    async def _read_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s, before = loop.time(), self._keeper.schedulers
            with contextlib.suppress(NereidError):
                await self.read_counts()
            if self._keeper.schedulers != before:
                # The next read gives a new scheduler the counts that it lacks, so it begins at
                # once.
                continue
            pause_s = min((loop.time() - began_s) * _PAUSES, _MAX_PAUSE_S)
            await asyncio.sleep(max(self._interval_s, pause_s))

    async def read_counts(self) -> None:
        """Read what the schedulers have counted since, and give them the counts that they lack."""
        await self._ask_schedulers()
        if self._group is not None:
            async with self._group_turn:
                if self._group_due:
                    self._group_due = False
                    for counts in await self._group.read():
                        self._keeper.add(counts)

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
        """Return the counts of this gateway, without those of unloaded models."""
        with contextlib.suppress(NereidError):
            await self._ask_schedulers()
        counts = pb.SchedulerCounts(changed=self._keeper.store.all())
        return pb.CountsResponse(schedulers=[counts])

    def add(self, response: bytes) -> None:
        """Keep the last counts of a scheduler that is ending. response: a CountsResponse."""
        self._keeper.add(pb.CountsResponse.FromString(response))
