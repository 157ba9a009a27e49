"""The scheduler as a service: its table of RPCs, its start and its drain.

Wires the other modules together and decides nothing. A gateway's link is the same over a socket and
in memory (nereid.cli.serve.joined).
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Unavailable
from nereid.core.messages import CachedModels
from nereid.core.methods import (
    EXECUTE_PATH,
    INFER_PATH,
    JOIN_PATH,
    PEER_PATH,
)
from nereid.core.retry_after import DEFAULT_MS
from nereid.object_store.errors import StoreError
from nereid.object_store.settings import store_environ
from nereid.rpc import Handlers
from nereid.rpc.net.scheduler_addresses import parse_addresses
from nereid.service_process import StartError
from nereid.services.scheduler.caching.mesh_cache import MeshCache
from nereid.services.scheduler.control import Control
from nereid.services.scheduler.executors.executor_streams import ExecutorStreams
from nereid.services.scheduler.executors.sessions import memory_of
from nereid.services.scheduler.models.catalogue import Catalogue
from nereid.services.scheduler.models.config_completion import CompletionRules
from nereid.services.scheduler.models.load_rules import LoadRules
from nereid.services.scheduler.models.loader import Loader
from nereid.services.scheduler.models.readiness import Readiness
from nereid.services.scheduler.observability.latencies import parse_metrics_config
from nereid.services.scheduler.observability.mesh_settings import MeshSettings
from nereid.services.scheduler.observability.metrics import SchedulerMetrics
from nereid.services.scheduler.observability.request_traces import open_traces
from nereid.services.scheduler.ports import SocketPorts
from nereid.services.scheduler.reconciler.desired_models import DesiredModels
from nereid.services.scheduler.reconciler.reconciler import Reconciler, Sources
from nereid.services.scheduler.reconciler.rules import EXPLICIT
from nereid.services.scheduler.repository.model_control import ModelControl
from nereid.services.scheduler.repository.recorded_models import RecordedModels
from nereid.services.scheduler.repository.repositories import Repositories
from nereid.services.scheduler.repository.repository_methods import repository_handlers
from nereid.services.scheduler.repository.stored_repository import open_stored_repositories
from nereid.services.scheduler.requests.admission import STOPPING, Admission, stopping_response
from nereid.services.scheduler.requests.gateway_links import GatewayLinks
from nereid.services.scheduler.requests.load_queue import LoadQueue
from nereid.services.scheduler.requests.segment_owners import SegmentOwners
from nereid.services.scheduler.residency.budgets import budgets_of
from nereid.services.scheduler.residency.on_demand import OnDemand
from nereid.services.scheduler.residency.policy import Residency
from nereid.services.scheduler.residency.popularity import Popularity
from nereid.services.scheduler.settings_rules import (
    control_rules,
    open_state,
    queue_limits,
    rate_limiter,
)
from nereid.services.scheduler.shards.membership import Membership
from nereid.services.scheduler.shards.model_moves import ModelMoves
from nereid.services.scheduler.shards.ownership import OwnedModels
from nereid.services.scheduler.shards.remote_control import RemoteControl
from nereid.services.scheduler.shards.shard import Shard
from nereid.services.scheduler.state.setting_records import SIZES
from nereid.shm.segments import shm_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nereid.core.messages import FromScheduler, Notice
    from nereid.pb import nereid_pb2 as pb
    from nereid.rpc import Call, Channel, Link
    from nereid.services.scheduler.caching.cache_client import CacheLink
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.observability.latencies import MetricsConfig
    from nereid.services.scheduler.ports import MeshPorts
    from nereid.services.scheduler.requests.entry import Entry
    from nereid.services.scheduler.settings import Settings
    from nereid.services.scheduler.state.model_records import ModelRecord
    from nereid.services.scheduler.state.state import Documents, SchedulerState

_log = logging.getLogger(__name__)

# For the responses that are still in write buffers at the end of a drain.
_LAST_WRITES_S: Final = 1.0
# The exit code after --exit-on-error: the process should not be restarted.
FAILED_START_CODE: Final = 3


class SchedulerService:
    """One scheduler. Create it inside the event loop that it shall run in."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        settings: Settings,
        open_cache_link: Callable[[], CacheLink] | None = None,
        on_failed_start: Callable[[], None] = lambda: None,
        *,
        cache_in_memory: bool = False,
        cache_channel: Channel | None = None,
        state: SchedulerState | None = None,
        ports: MeshPorts | None = None,
    ) -> None:
        """open_cache_link: to a cache in this process; else settings say where one is, if any.
        cache_in_memory: that cache keeps its values in this process' memory, not in Redis.
        on_failed_start: with --exit-on-error, a model could not be loaded at start.
        cache_channel: for calls of a cache in this process. state: in place of the one that the
        settings ask for. ports: in place of sockets.
        """
        self._settings = settings
        self._ports = SocketPorts(settings) if ports is None else ports
        channel = None if open_cache_link else self._ports.open_cache()
        self._cache = MeshCache(settings, channel, open_cache_link, in_this_process=cache_in_memory)
        self._state = state or open_state(settings, cache_channel or channel)
        self._mesh_settings = MeshSettings(
            settings, self._send_notice, self._send_command, self._state.settings
        )
        self._segment_owners = SegmentOwners(shm_namespace(settings.shm_limit_bytes))
        self._traces = open_traces(settings)
        metrics_config = parse_metrics_config(settings.metrics_config)
        # ---- the models
        self._desired = DesiredModels(settings.load_model, self._models_due)
        self._catalogue = Catalogue(desired=self._desired)
        membership = _membership(settings)
        residency = Residency(budgets_of(settings.model_memory_budget))
        self._loader = Loader(
            self._load_rules(metrics_config, membership, residency),
            self._models_changed,
            self._catalogue,
            self._mesh_settings.commands,
            self._executors_changed,
            times=settings.recovery,
        )
        self._executor_streams = ExecutorStreams(self._loader)
        self._load_queue = LoadQueue(settings.no_executor_limit_s, settings.max_queue_size)
        repositories = _open_repositories(settings)
        # None: this is the mesh's only scheduler.
        self._moves: ModelMoves | None = None
        self._shard: Shard | None = None
        if membership is not None:
            self._moves, self._shard = self._open_shard(membership, repositories)
        # None: no model is loaded on demand.
        self._on_demand = self._open_on_demand(residency) if settings.lazy_loading else None
        self._reconciler, self._repository = self._open_control(repositories)
        # The first loads have, so that records found after that come after them.
        self._models_begun = asyncio.Event()
        # ---- requests
        self._admission = Admission(
            self._catalogue,
            self._load_queue,
            self._traces,
            self._loader.nested_calls,
            first_runs=self._loader.first_runs,
            has_moved=None if self._moves is None else self._moves.has_moved,
            loads=None if self._on_demand is None else self._on_demand.request,
            orphan_limit_s=settings.recovery.orphan_s,
        )
        self._gateways = GatewayLinks(self._admission, self._segment_owners, self._notices)
        # The cached models that gateways know of: those whose requests want a digest.
        self._announced: tuple[str, ...] = ()
        # ---- control calls
        self.metrics = SchedulerMetrics(
            self._catalogue,
            self._loader,
            self._load_queue,
            self._gateways.sessions,
            metrics_config,
            repositories=repositories,
            cache_usage=self._cache.usage,
            state_failures=lambda: self._state.failures,
            on_demand=None if self._on_demand is None else self._on_demand.counts,
        )
        self._control = Control(
            self._catalogue,
            self.metrics,
            self._mesh_settings,
            Readiness(lambda: self._loader.sessions),
            strict=settings.strict_readiness,
            is_elsewhere=None if self._moves is None else self._moves.is_elsewhere,
            ensure=None if self._on_demand is None else self._on_demand.ensure,
            memory_of=self._memory_of if settings.lazy_loading else None,
        )
        repository_calls = repository_handlers(self._repository)
        self._own_handlers = Handlers(
            unary=self._control.handlers(),
            async_unary={**repository_calls, **self._control.async_handlers()},
        )
        self._remote_control: RemoteControl | None = None
        if self._shard is not None and self._moves is not None:
            self._remote_control = RemoteControl(
                self._shard, self._moves, self._own_handlers, settings.recovery.forwarded_call_s
            )
        # ---- its life
        self._started = False
        # With --exit-on-error: whether a model to begin with could not be loaded.
        self.failed_start = False
        self._on_failed_start = on_failed_start
        self._first_loads: asyncio.Task[None] | None = None
        # Where it listens, once started: port 0 is replaced by the one that the system chose.
        self.addresses: list[str] = []

    # ---- its parts

    def _load_rules(
        self, metrics: MetricsConfig, membership: Membership | None, residency: Residency
    ) -> LoadRules:
        settings = self._settings
        return LoadRules(
            CompletionRules(settings.disable_auto_complete_config, settings.backend_settings),
            settings.backend_settings,
            queue_limits(settings),
            metrics,
            self._traces,
            self._cache.responses,
            self._segment_owners,
            settings.backends,
            self._cache.snapshots,
            rate_limiter(settings),
            membership,
            residency.free,
        )

    def _open_shard(
        self, membership: Membership, repositories: Repositories
    ) -> tuple[ModelMoves, Shard]:
        settings = self._settings
        owned = OwnedModels(membership.name)
        moves = ModelMoves(
            owned,
            membership,
            repositories,
            self._catalogue,
            settings.model_control_mode,
            self._loader,
            self._desired,
            self._models_regrouped,
            settings.recovery,
        )
        shard = Shard(
            membership,
            owned,
            moves,
            parse_addresses(settings.scheduler_peers or ""),
            self._ports.open_peer,
            self._send_notice,
            count_links=lambda: len(self._gateways),
            times=settings.recovery,
        )
        return moves, shard

    def _open_on_demand(self, residency: Residency) -> OnDemand:
        settings = self._settings
        return OnDemand(
            self._desired,
            self._catalogue,
            self._loader,
            residency=residency,
            popularity=Popularity(settings.model_popularity_half_life),
            timeout_s=settings.no_executor_limit_s,
            held_models=lambda: (each.name for each in self._load_queue),
            record_sizes=partial(self._state.settings.record, SIZES),
        )

    def _open_control(self, repositories: Repositories) -> tuple[Reconciler, ModelControl]:
        rules, records = control_rules(self._settings), self._state.models
        recorded = None
        if records is not None and rules.mode == EXPLICIT:
            recorded = RecordedModels(repositories, records, files_allowed=rules.allow_model_files)
        sources = Sources(self._on_demand, recorded, self._moves)
        reconciler = Reconciler(
            self._desired, self._catalogue, self._loader, repositories, rules, sources
        )
        control = ModelControl(
            repositories, self._catalogue, self._desired, reconciler, rules, sources
        )
        return reconciler, control

    def handlers(self) -> Handlers:
        """All RPCs of the scheduler, for a server or a LocalChannel."""
        streams = {
            INFER_PATH: self._gateways.accept_call,
            JOIN_PATH: self._executor_streams.accept_join,
            EXECUTE_PATH: self._executor_streams.accept_execute,
        }
        if self._shard is None or self._remote_control is None:
            return replace(self._own_handlers, stream=streams)
        streams[PEER_PATH] = self._accept_peer
        return Handlers(async_unary=self._remote_control.handlers(), stream=streams)

    def attach(self, link: Link[FromScheduler]) -> None:
        """Serve a gateway in this process. Call before items come in."""
        self._gateways.attach(link)

    def announce(self) -> None:
        """Send the gateways all notices that are in force."""
        self._gateways.greet_again()

    async def start(self) -> None:
        """Read the repositories' configurations and listen.

        Raises:
            OSError: it cannot listen at an address.
            StartError: a repository in an object store cannot be read.
        """
        try:
            await self._start()
        except StoreError as error:
            raise StartError(f"--model-repository: {error.text}") from error

    async def _start(self) -> None:
        documents = await self._state.read(self._restore)
        explicit = self._settings.model_control_mode == EXPLICIT
        if documents is None and explicit:
            self._repository.await_records()
        self._mesh_settings.restore(documents or {})
        if self._on_demand is not None:
            self._state.settings.apply(documents or {}, SIZES, self._on_demand.restore_sizes)
        records = self._model_records(documents or {})
        if self._shard is None or self._moves is None:
            await self._repository.start(records)
            await self._listen()
        else:
            await self._moves.scan()
            await self._listen()
            await self._shard.start()
            await self._repository.start(records)
            self._shard.update()
        self._models_begun.set()
        self._started = True
        if self._remote_control is not None:
            self._remote_control.started.set()
        self._gateways.start()
        if self._settings.exit_on_error:
            self._first_loads = asyncio.ensure_future(self._watch_first_loads())

    async def _listen(self) -> None:
        self._loader.first_runs.restart_grace()
        self.addresses += await self._ports.listen(self.handlers())
        _log.info("listening at %s", ", ".join(self.addresses))

    @property
    def ready(self) -> bool:
        """Whether gateways and executors may rely on it; what models it has does not matter."""
        return self._started and not self._control.stopping

    def exposure(self) -> str:
        """What its ports are open for, and to whom."""
        settings = self._settings
        return "; ".join(
            f"to {settings.mesh_users(address)} at {address}: the mesh"
            for address in self.addresses
        )

    def _model_records(self, documents: Documents) -> dict[str, ModelRecord]:
        models = self._state.models
        explicit = self._settings.model_control_mode == EXPLICIT
        return {} if models is None or not explicit else models.parse(documents)

    async def _restore(self, documents: Documents) -> None:
        """The state could be read only after the start."""
        await self._models_begun.wait()
        self._mesh_settings.restore(documents)
        await self._repository.restore(self._model_records(documents))
        self._models_changed()

    async def _watch_first_loads(self) -> None:
        if not await self._repository.first_loads():
            _log.error("failed to load all models; the scheduler ends, as --exit-on-error asks")
            self.failed_start = True
            self._on_failed_start()

    async def drain(self, timeout_s: float) -> None:
        """Leave new requests, and what cannot run, to the next scheduler; finish the others, fail
        what takes longer; then end.
        """
        self._control.stopping = True
        # First: requests that come from now on belong to another scheduler.
        handed_over = False
        if self._shard is not None:
            handed_over = self._shard.leave()
        else:
            self._gateways.announce_leaving()
        self._admission.stop()
        self._return_entries(lambda entry: entry.owner.is_blocked(entry))
        if self._first_loads is not None:
            self._first_loads.cancel()
        if handed_over:
            await self._reconciler.finish_hand_overs(timeout_s)
        await self._reconciler.close()
        if self._on_demand is not None:
            await self._on_demand.close()
        await self._state.close()
        models = [each.runtime for each in self._loader.versions if each.runtime is not None]
        waits = [asyncio.ensure_future(self._load_queue.idle())]
        waits += [asyncio.ensure_future(model.idle()) for model in models]
        _, unfinished = await asyncio.wait(waits, timeout=timeout_s)
        for wait in unfinished:
            wait.cancel()
        if unfinished:
            _log.warning(
                "requests are still pending after %g s; those that execute fail", timeout_s
            )
            self._return_entries(lambda _: True)
        error = Unavailable(STOPPING, accepted=True, retry_after_ms=DEFAULT_MS)
        self._load_queue.fail_all(error)
        for model in models:
            model.fail_all(error)
            model.close()
        await self._flush()

    def _return_entries(self, is_chosen: Callable[[Entry], bool]) -> None:
        """Return those requests of clients, of the chosen ones, that have not begun."""
        entries = [
            entry for session in self._gateways.sessions for entry in session.client_entries()
        ]
        # First all are chosen: one that goes may change what the others of its sequence wait for.
        for entry in [each for each in entries if is_chosen(each)]:
            entry.owner.return_entry(entry, stopping_response(entry.request))

    async def _flush(self) -> None:
        self._loader.stop()
        await self._gateways.close(_LAST_WRITES_S)
        if self._shard is not None:
            await self._shard.close()
        await self._ports.close()
        await self._cache.close()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def _notices(self, shares: bool) -> Iterator[Notice]:
        yield self._cached_models(shares)
        yield from self._mesh_settings.notices()
        if self._shard is not None:
            yield self._shard.notice()

    def _cached_models(self, shares: bool) -> CachedModels:
        # Of a gateway that shares no memory the requests must be inline.
        domain = self._segment_owners.domain if shares else ""
        if self._cache.responses is None:
            return CachedModels((), domain)
        key = self._cache.responses.secrets.request_key
        return CachedModels(self._catalogue.cached_models(), domain, key)

    def _memory_of(self, served: ServedVersion) -> Mapping[str, int]:
        return memory_of(served, self._loader.sessions)

    def _executors_changed(self) -> None:
        if self._on_demand is not None:
            self._on_demand.on_executors()

    def _models_due(self) -> None:
        asyncio.get_running_loop().call_soon(self._reconciler.reconcile)

    def _models_regrouped(self) -> None:
        if self._shard is not None:
            self._shard.regroup()

    def _models_changed(self) -> None:
        self._admission.models_changed()
        if self._shard is not None:
            self._shard.models_changed()
        if self._cache.responses is not None and self._announced != self._catalogue.cached_models():
            self._announced = self._catalogue.cached_models()
            self._gateways.send_to_each(self._cached_models)

    def _accept_peer(self, call: Call) -> None:
        assert self._shard is not None, "the mesh's only scheduler"
        call.set_keepalive(*self._settings.keepalive(replaceable=True))
        self._shard.accept_peer(call)

    def _send_notice(self, notice: Notice) -> None:
        self._gateways.send_notice(notice)

    def _send_command(self, command: pb.ExecutorCommand) -> None:
        for session in self._loader.sessions:
            session.send(command)


def _membership(settings: Settings) -> Membership | None:
    """None: this is the mesh's only scheduler."""
    if settings.scheduler_peers is None:
        return None
    incarnation = int.from_bytes(os.urandom(8), "little") or 1
    return Membership(settings.shard_name(), incarnation)


def _open_repositories(settings: Settings) -> Repositories:
    paths, config_name = settings.model_repository, settings.model_config_name
    stored = open_stored_repositories(paths, store_environ(), config_name)
    return Repositories(paths, config_name, settings.model_namespacing, stored)
