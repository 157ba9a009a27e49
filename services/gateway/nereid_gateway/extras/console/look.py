"""A look at the mesh: facts of its schedulers and of this gateway, read once for all consoles."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from nereid.core.errors import NereidError
from nereid.facts.mesh_facts import ConfigFacts, is_in_memory
from nereid.observability import metrics
from nereid.observability.samples import Samples, Series
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.console.loads import Key, Loads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from google.protobuf.message import Message

    from nereid_gateway.extras.console.slices import Slices
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.data_plane import DataPlane

    Response = TypeVar("Response", bound=Message)

# In a larger mesh, only the series of models that consoles show are read.
_MAX_WHOLE: Final = 200
# Seconds per version between reads of the index, or loads: ten seconds for 10,000 versions.
_PACE_S: Final = 0.001
# Each configuration takes a call of its own.
_MAX_CONFIGS: Final = 16
# This is enough for 400 models.
_MAX_SERIES: Final = 20_000
# A scheduler sends no more.
_MAX_EVENTS: Final = 500
# A metrics page is parsed in parts of this size.
_PART_BYTES: Final = 8192


@dataclass(frozen=True)
class IndexEntry:
    """Version of a model in the repository index."""

    key: Key
    state: str
    reason: str

    @property
    def in_memory(self) -> bool:
        """True if the version can serve requests without being loaded first."""
        return is_in_memory(self.state, self.reason)

    @property
    def failed(self) -> bool:
        """True if the version should serve requests but does not."""
        return self.state == "UNAVAILABLE" and self.reason != "unloaded"


class Problem(NamedTuple):
    """A failed call, and why it failed."""

    text: str
    # Empty if the call was for no model.
    model: str = ""


@dataclass(frozen=True)
class Look:
    """Facts that one look has read."""

    time_s: float
    # The same object as in the last look if the index is unchanged.
    index: tuple[IndexEntry, ...] = ()
    # `mesh` has the samples that concern no version, and `models` has those of each version.
    mesh: Samples = field(default_factory=lambda: Samples(b""))
    models: dict[tuple[str, ...], Samples] = field(default_factory=dict)
    # Samples of this gateway, or of all gateways of its group.
    own: Samples = field(default_factory=lambda: Samples(b""))
    hosting: pb.FactsResponse = field(default_factory=pb.FactsResponse)
    configs: dict[Key, ConfigFacts] = field(default_factory=dict)
    # Results of ModelReady for the models that are shown in detail.
    ready: dict[Key, bool] = field(default_factory=dict)
    server_ready: bool = False
    loads: Loads = field(default_factory=Loads)
    # The oldest first; empty as long as no console shows them.
    events: tuple[pb.MeshEvent, ...] = ()
    problems: tuple[Problem, ...] = ()


_NO_SAMPLES: Final = Samples(b"")


class Observer:
    """Looks at the mesh, and caches facts that need not be read again."""

    def __init__(
        self,
        data_plane: DataPlane,
        request: pb.MetricsRequest,
        read_own: Callable[[], Awaitable[bytes]],
    ) -> None:
        """request: the message that requests the mesh's metrics. read_own: returns own metrics."""
        self._data_plane = data_plane
        self._control: Control = data_plane.control
        self._request = request
        self._read_own = read_own
        self._index: tuple[IndexEntry, ...] = ()
        self._index_bytes: bytes | None = None
        self._index_due_s = 0.0
        self._loads = Loads()
        self._loads_due_s = 0.0
        self._events: tuple[pb.MeshEvent, ...] = ()
        # Numbers of the schedulers' last events, when the events were read, and now.
        self._events_read: dict[str, int] = {}
        self._events_recorded: dict[str, int] | None = None
        # Key: the text of a line before its value. Value: the series' name and labels.
        self._series: dict[bytes, Series] = {}
        # Value: the duration of the version's load, and the configuration. If the duration has
        # changed, the configuration is out of date.
        self._configs: dict[Key, tuple[float | None, ConfigFacts]] = {}

    async def look(
        self,
        detailed: Collection[str],
        choose: Callable[[tuple[IndexEntry, ...], Loads], Collection[Key]],
        cost: Slices,
        *,
        with_events: bool = False,
    ) -> Look:
        """Read the facts of the mesh. A call that fails becomes a problem of the look.

        detailed: models whose readiness, batches and declared configurations are read too. choose:
        returns the versions whose series and configurations are read. cost: adds up the look's
        processor time.
        """
        problems: list[Problem] = []
        await self._read_index(problems, cost)
        hosting = await self._read_facts(detailed, problems, cost, with_events=with_events)
        with cost:
            shown = choose(self._index, self._loads)
            request = pb.MetricsRequest(without_histograms=True)
            request.MergeFrom(self._request)
            if len(self._index) > _MAX_WHOLE:
                # No model has an empty name, so this selects no series of models.
                request.models.extend({key.name for key in shown} or {""})
        page, own, server_ready = await asyncio.gather(
            self._call("Metrics", request, pb.MetricsResponse, problems),
            self._read_own(),
            self._data_plane.ready(),
        )
        with cost:
            models = await self._samples_by_version(page.exposition, cost)
            mesh = models.pop((), _NO_SAMPLES)
            in_memory = {entry.key for entry in self._index if entry.in_memory}
        await self._read_configs(
            [key for key in shown if key in in_memory], models, in_memory, problems
        )
        ready = await self._ask_models([key for key in in_memory if key.name in detailed])
        with cost:
            return Look(
                time.time(),
                self._index,
                mesh,
                models,
                Samples(own),
                hosting,
                {key: config for key, (_, config) in self._configs.items()},
                ready,
                server_ready,
                self._loads,
                self._events,
                tuple(dict.fromkeys(problems)),
            )

    async def _call(
        self, method: str, request: Message, response: type[Response], problems: list[Problem]
    ) -> Response:
        try:
            return await self._control.call(method, request, response)
        except NereidError as error:
            problems.append(Problem(f"{method}: {error.message}"))
            return response()

    async def _read_facts(
        self,
        detailed: Collection[str],
        problems: list[Problem],
        cost: Slices,
        *,
        with_events: bool,
    ) -> pb.FactsResponse:
        now_s = time.monotonic()
        due = now_s >= self._loads_due_s
        new_events = with_events and self._events_recorded != self._events_read
        request = pb.FactsRequest(
            models=detailed, with_loads=due, events=_MAX_EVENTS if new_events else 0
        )
        before = len(problems)
        response = await self._call("Facts", request, pb.FactsResponse, problems)
        if due and len(problems) == before:
            with cost:
                loads = {Key(load.model, str(load.version)): load for load in response.loads}
                self._loads = self._loads.later(loads, now_s)
                self._loads_due_s = now_s + _PACE_S * len(loads)
        if len(problems) == before:
            self._events_recorded = {each.name: each.events for each in response.schedulers}
            if new_events:
                self._events_read = self._events_recorded
                by_time = sorted(response.events, key=lambda event: event.time_s)
                self._events = tuple(by_time[-_MAX_EVENTS:])
        return response

    async def _read_index(self, problems: list[Problem], cost: Slices) -> None:
        now_s = time.monotonic()
        if now_s < self._index_due_s:
            return
        try:
            data = await self._control.read_for_whole_mesh(
                "RepositoryIndex", kserve_pb2.RepositoryIndexRequest()
            )
        except NereidError as error:
            problems.append(Problem(f"RepositoryIndex: {error.message}"))
            return
        if data != self._index_bytes:
            with cost:
                self._index_bytes = data
                index = []
                for model in kserve_pb2.RepositoryIndexResponse.FromString(data).models:
                    key = Key(model.name, model.version)
                    index.append(IndexEntry(key, model.state, model.reason))
                    await cost.pause()
                self._index = tuple(index)
        self._index_due_s = now_s + _PACE_S * len(self._index)

    async def _ask_models(self, keys: Collection[Key]) -> dict[Key, bool]:
        async def ask(key: Key) -> bool:
            request = kserve_pb2.ModelReadyRequest(name=key.name, version=key.version)
            try:
                response = await self._control.call(
                    "ModelReady", request, kserve_pb2.ModelReadyResponse
                )
            except NereidError:
                return False
            return response.ready

        replies = await asyncio.gather(*map(ask, keys))
        return dict(zip(keys, replies, strict=True))

    async def _read_configs(
        self,
        keys: Collection[Key],
        by_model: dict[tuple[str, ...], Samples],
        in_memory: Collection[Key],
        problems: list[Problem],
    ) -> None:
        """Read configurations. A call for a version that is not in memory might load it."""
        for unloaded in self._configs.keys() - in_memory:
            del self._configs[unloaded]
        due = []
        for key in keys:
            samples = by_model.get(key)
            load_s = None if samples is None else samples.total(metrics.LOAD_DURATION.name)
            known = self._configs.get(key)
            if known is None or known[0] != load_s:
                due.append((key, load_s))

        async def read(key: Key, load_s: float | None) -> None:
            request = kserve_pb2.ModelConfigRequest(name=key.name, version=key.version)
            try:
                response = await self._control.call(
                    "ModelConfig", request, kserve_pb2.ModelConfigResponse
                )
            except NereidError as error:
                problems.append(Problem(f"ModelConfig: {error.message}", key.name))
                return
            self._configs[key] = load_s, ConfigFacts(response.config, dict(response.sources))

        await asyncio.gather(*(read(key, load_s) for key, load_s in due[:_MAX_CONFIGS]))

    async def _samples_by_version(
        self, page: bytes, cost: Slices
    ) -> dict[tuple[str, ...], Samples]:
        """Return the samples of each version. Samples that concern no version have the key ()."""
        by_version: dict[tuple[str, ...], Samples] = {}
        if len(self._series) > _MAX_SERIES:
            self._series.clear()
        start = 0
        while start < len(page):
            end = page.find(b"\n", start + _PART_BYTES) + 1 or len(page)
            samples = Samples(page[start:end], known=self._series)
            for key, part in samples.split("model", "version").items():
                known = by_version.get(key)
                if known is None:
                    by_version[key] = part
                else:
                    known.extend(part)
            start = end
            await cost.pause()
        return by_version
