"""One look at a mesh: what its schedulers and this gateway say, asked once for all consoles."""

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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from google.protobuf.message import Message

    from nereid_gateway.extras.console.slices import Slices
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.data_plane import DataPlane

    Response = TypeVar("Response", bound=Message)

# With more versions, only the series of the models that are shown are read.
_MAX_WHOLE: Final = 200
# The index is read anew after so many seconds for each version: 10,000 take 10 s.
_INDEX_PACE_S: Final = 0.001
# Configurations that are read at once: each is a call of its own.
_MAX_CONFIGS: Final = 16
# Names and labels that are remembered: of 400 models.
_MAX_SERIES: Final = 20_000
# Of a page, read at once.
_PART_BYTES: Final = 8192


class Wanted(NamedTuple):
    """shown: versions whose series and configurations are wanted. detailed: models whose readiness,
    batches and declared configurations are wanted as well.
    """

    shown: Collection[Key]
    detailed: Collection[str]


class Key(NamedTuple):
    """A version, or a model without any (empty)."""

    name: str
    version: str


@dataclass(frozen=True)
class IndexEntry:
    """A version in the repository index."""

    key: Key
    state: str
    reason: str

    @property
    def in_memory(self) -> bool:
        """Whether it is ready without being loaded first."""
        return is_in_memory(self.state, self.reason)

    @property
    def failed(self) -> bool:
        """Whether it was to serve, and does not."""
        return self.state == "UNAVAILABLE" and self.reason != "unloaded"


class Problem(NamedTuple):
    """What could not be asked, and why. model: the one that it was about; empty: none."""

    text: str
    model: str = ""


@dataclass(frozen=True)
class Look:
    """What was seen. index: the same object as before if nothing has changed in it."""

    time_s: float
    index: tuple[IndexEntry, ...] = ()
    # Of the mesh as a whole, and by version.
    mesh: Samples = field(default_factory=lambda: Samples(b""))
    models: dict[tuple[str, ...], Samples] = field(default_factory=dict)
    own: Samples = field(default_factory=lambda: Samples(b""))
    hosting: pb.FactsResponse = field(default_factory=pb.FactsResponse)
    configs: dict[Key, ConfigFacts] = field(default_factory=dict)
    # Of the models with details: what ModelReady says.
    ready: dict[Key, bool] = field(default_factory=dict)
    server_ready: bool = False
    # The series of models are those of the shown ones alone.
    partial: bool = False
    problems: tuple[Problem, ...] = ()


_NO_SAMPLES: Final = Samples(b"")


class Observer:
    """Looks at the mesh, and remembers what need not be asked for again."""

    def __init__(
        self,
        data_plane: DataPlane,
        request: pb.MetricsRequest,
        read_own: Callable[[], Awaitable[bytes]],
    ) -> None:
        """request: for the mesh's series. read_own: those of this gateway, or its group."""
        self._data_plane = data_plane
        self._control: Control = data_plane.control
        self._request = request
        self._read_own = read_own
        self._index: tuple[IndexEntry, ...] = ()
        self._index_bytes: bytes | None = None
        self._index_due_s = 0.0
        # Of the mesh's page.
        self._series: dict[bytes, Series] = {}
        # With the load's duration: another one means that the version was loaded anew.
        self._configs: dict[Key, tuple[float | None, ConfigFacts]] = {}

    async def look(self, choose: Callable[[tuple[IndexEntry, ...]], Wanted], cost: Slices) -> Look:
        """Ask the mesh. choose: what is wanted beside the index, by what is in it. cost: gets the
        processor time.
        """
        problems: list[Problem] = []
        await self._read_index(problems, cost)
        with cost:
            shown, detailed = choose(self._index)
            partial = len(self._index) > _MAX_WHOLE
            request = pb.MetricsRequest()
            request.MergeFrom(self._request)
            if partial:
                # A name that no model has: no series of models at all.
                request.models.extend({each.name for each in shown} or {""})
        page, hosting, own, server_ready = await asyncio.gather(
            self._call("Metrics", request, pb.MetricsResponse, problems),
            self._call("Facts", pb.FactsRequest(models=detailed), pb.FactsResponse, problems),
            self._read_own(),
            self._data_plane.ready(),
        )
        with cost:
            models = await self._samples_by_version(page.exposition, cost)
            mesh = models.pop((), _NO_SAMPLES)
            in_memory = {each.key for each in self._index if each.in_memory}
        await self._read_configs(
            [each for each in shown if each in in_memory], models, in_memory, problems
        )
        ready = await self._ask_models([each for each in in_memory if each.name in detailed])
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
                partial,
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

    async def _read_index(self, problems: list[Problem], cost: Slices) -> None:
        now_s = time.monotonic()
        if now_s < self._index_due_s:
            return
        try:
            data = await self._control.page("RepositoryIndex", kserve_pb2.RepositoryIndexRequest())
        except NereidError as error:
            problems.append(Problem(f"RepositoryIndex: {error.message}"))
            return
        if data != self._index_bytes:
            with cost:
                self._index_bytes = data
                index = []
                for each in kserve_pb2.RepositoryIndexResponse.FromString(data).models:
                    key = Key(each.name, each.version)
                    index.append(IndexEntry(key, each.state, each.reason))
                    await cost.pause()
                self._index = tuple(index)
        self._index_due_s = now_s + _INDEX_PACE_S * len(self._index)

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
        """Read those that were loaded since. Not of models that are not in memory: to ask for
        their configurations may load them.
        """
        for gone in self._configs.keys() - in_memory:
            del self._configs[gone]
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
            self._configs[key] = load_s, ConfigFacts(response.config)

        await asyncio.gather(*(read(*each) for each in due[:_MAX_CONFIGS]))

    async def _samples_by_version(
        self, page: bytes, cost: Slices
    ) -> dict[tuple[str, ...], Samples]:
        """Those of each version, and without one: ()."""
        found: dict[tuple[str, ...], Samples] = {}
        if len(self._series) > _MAX_SERIES:
            self._series.clear()
        start = 0
        while start < len(page):
            end = page.find(b"\n", start + _PART_BYTES) + 1 or len(page)
            samples = Samples(page[start:end], known=self._series)
            for key, part in samples.split("model", "version").items():
                known = found.get(key)
                if known is None:
                    found[key] = part
                else:
                    known.extend(part)
            start = end
            await cost.pause()
        return found
