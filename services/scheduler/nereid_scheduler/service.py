"""The scheduler as a service: the RPCs that it serves, how it starts and how it drains."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from nereid.core.errors import STOPPING_MESSAGE, Unavailable
from nereid.core.files.file_watch import FileError
from nereid.core.methods import (
    EXECUTE_PATH,
    INFER_PATH,
    JOIN_PATH,
    PEER_PATH,
    TIMELINE_PATH,
)
from nereid.core.retry_after import DEFAULT_MS
from nereid.core.wire.messages import CachedModels, LastCounts, ModelsChanged
from nereid.object_store.errors import StoreError
from nereid.pb import nereid_pb2 as pb
from nereid.process.service_process import StartError
from nereid.rpc import Handlers
from nereid.timeline.collection import TimelineStreams
from nereid_scheduler.admission.admission import Admission, stopping_response
from nereid_scheduler.admission.call_rights import CallRights
from nereid_scheduler.admission.gateway_links import GatewayLinks
from nereid_scheduler.control.rules import EXPLICIT
from nereid_scheduler.control.shards.remote_control import RemoteControl
from nereid_scheduler.control.sources.traffic_file import read_traffic_file, watch_traffic_file
from nereid_scheduler.control.state.setting_records import SIZES
from nereid_scheduler.environment import open_environment
from nereid_scheduler.model_parts import open_models
from nereid_scheduler.pages.control import Control
from nereid_scheduler.pages.counts_report import CountsReport
from nereid_scheduler.pages.hosting_facts import HostingFacts
from nereid_scheduler.pages.mesh_settings import MeshSettings
from nereid_scheduler.pages.metrics import SchedulerMetrics
from nereid_scheduler.pages.model_traffic import rollout_handlers, traffic_handlers
from nereid_scheduler.pages.repository_methods import repository_handlers
from nereid_scheduler.pages.text_models import text_handlers
from nereid_scheduler.placement.executors.drains import Drains
from nereid_scheduler.placement.executors.sessions import memory_of
from nereid_scheduler.placement.executors.timelines import Timelines
from nereid_scheduler.placement.loads.executor_streams import ExecutorStreams
from nereid_scheduler.placement.loads.readiness import Readiness
from nereid_scheduler.placement.models.shadow_target import target_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nereid.comparison.shadow import Shadow
    from nereid.core.files.file_watch import FileWatch
    from nereid.core.wire.messages import FromScheduler, Notice
    from nereid.rpc import AsyncUnaryHandler, Call, Link
    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.control.state.state import Documents, SchedulerState
    from nereid_scheduler.core.models.model_record import ModelRecord
    from nereid_scheduler.core.models.traffic_table import FileSetting
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.placement.models.catalogue import ServedVersion
    from nereid_scheduler.ports import MeshPorts
    from nereid_scheduler.settings import Settings
    from nereid_scheduler.versions.caching.cache_client import CacheLink
    from nereid_scheduler.versions.model_version import ModelVersion

_log = logging.getLogger(__name__)

# Maximum time for the responses in write buffers at the end of a drain.
_LAST_WRITES_S: Final = 1.0
# Exit code of a process that --exit-on-error ends. Such a process should not be restarted.
FAILED_START_CODE: Final = 3


class SchedulerService:
    """One scheduler. Create it inside the event loop in which it runs."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        settings: Settings,
        open_cache_link: Callable[[], CacheLink] | None = None,
        on_failed_start: Callable[[], None] = lambda: None,
        *,
        cache_in_memory: bool = False,
        state: SchedulerState | None = None,
        ports: MeshPorts | None = None,
    ) -> None:
        """Create a scheduler that does not listen yet.

        open_cache_link, cache_in_memory: describe a cache in this process. on_failed_start: called
        if a first load failed with --exit-on-error.
        """
        environment = open_environment(
            settings, open_cache_link, state, ports, cache_in_memory=cache_in_memory
        )
        self._settings, self._environment = settings, environment
        self._mesh_settings = MeshSettings(
            settings,
            settings.trace_config,
            self._send_notice,
            self._send_command,
            environment.state.settings,
        )
        self._models = models = open_models(
            environment,
            self._models_changed,
            self._mesh_settings.commands,
            self._send_notice,
            lambda: len(self._gateways),
            on_handed_over=self._on_handed_over,
        )
        on_demand = models.on_demand
        # Set when the first loads have begun. Records that are read later wait for it.
        self._models_begun = asyncio.Event()
        self._admission = Admission(
            models.catalogue,
            models.load_queue,
            environment.traces,
            models.loader.nested_calls,
            call_rights=CallRights(models.loader.instances.placed),
            first_runs=models.loader.first_runs,
            has_moved=models.owners.has_moved,
            load_on_demand=on_demand.request,
            orphan_limit_s=settings.recovery.orphan_s,
            timeline=environment.timeline,
            steps=environment.steps,
        )
        self._gateways = GatewayLinks(self._admission, environment.segment_owners, self._notices)
        # Models whose responses are cached, as last sent. Gateways add a digest to requests for
        # these.
        self._announced: tuple[str, ...] = ()
        # Number of changes of versions' states; the start is the first.
        self._changes = 1
        self._timelines = Timelines(environment.timeline, lambda: models.loader.sessions)
        self._facts = HostingFacts(
            models.catalogue,
            models.loader,
            self._gateways.sessions,
            environment.timeline.events,
            None if models.shard is None else models.shard.membership,
        )
        self._drains = Drains(
            lambda: models.loader.sessions,
            self._mesh_facts,
            for_all=settings.model_control_mode == EXPLICIT,
        )
        self.metrics = SchedulerMetrics(
            models.catalogue,
            models.loader,
            models.load_queue,
            self._gateways.sessions,
            environment.metrics_config,
            repositories=models.repositories,
            cache_usage=environment.cache.usage,
            state_failures=lambda: environment.state.failures,
            on_demand=on_demand.counts if settings.lazy_loading else None,
            rollouts=models.rollouts,
        )
        self._counts = CountsReport(models.catalogue, self.metrics)
        self._control = Control(
            models.catalogue,
            self.metrics,
            self._mesh_settings,
            Readiness(lambda: models.loader.sessions),
            self._facts.respond,
            counts=self._counts,
            drain=self._drains.drain,
            strict=settings.strict_readiness,
            is_elsewhere=models.owners.is_elsewhere,
            ensure=on_demand.ensure,
            memory_of=self._memory_of if settings.lazy_loading else None,
        )
        self._own_control = {
            **repository_handlers(models.control, models.catalogue, models.desired),
            **self._control.handlers(),
            **text_handlers(models.catalogue, models.desired.on_demand, on_demand.ensure),
            **traffic_handlers(models.traffic, self._shadow_problem),
            **rollout_handlers(models.rollouts),
        }
        self._remote_control: RemoteControl | None = None
        if models.shard is not None and models.moves is not None:
            limit_s = settings.recovery.forwarded_call_s
            self._remote_control = RemoteControl(
                models.shard, models.moves, self._own_control, limit_s
            )
        self._traffic_watch: FileWatch[Mapping[str, FileSetting]] | None = None
        self._started = False
        self.failed_start = False
        self._on_failed_start = on_failed_start
        self._first_loads: asyncio.Task[None] | None = None
        # Port 0 is replaced by the actual port.
        self.addresses: list[str] = []

    async def _mesh_facts(self) -> pb.FactsResponse:
        if self._remote_control is None:
            return self._facts.respond(pb.FactsRequest())
        return await self._remote_control.read_facts()

    def _shadow_problem(self, name: str, shadow: Shadow) -> str:
        models = self._models
        return target_problem(models.catalogue, name, shadow, models.owners.is_elsewhere)

    def handlers(self) -> Handlers:
        """Return the handlers of all RPCs of the scheduler, for a server."""
        executors = ExecutorStreams(self._models.loader, self._timelines, self._drains)
        streams = {
            TIMELINE_PATH: TimelineStreams(self._timelines.collect).accept,
            INFER_PATH: self._gateways.accept_call,
            JOIN_PATH: executors.accept_join,
            EXECUTE_PATH: executors.accept_execute,
        }
        if self._models.shard is None or self._remote_control is None:
            own = {path: _accepting(respond) for path, respond in self._own_control.items()}
            return Handlers(async_unary=own, stream=streams)
        streams[PEER_PATH] = self._accept_peer
        return Handlers(async_unary=self._remote_control.handlers(), stream=streams)

    def attach(self, link: Link[FromScheduler], *, has_access_control: bool = False) -> None:
        """Serve a gateway in this process. Call this before the gateway sends its first item."""
        self._gateways.attach(link, has_access_control=has_access_control)

    def announce(self) -> None:
        """Send all gateways the current notices, such as the settings and the cached models."""
        self._gateways.greet_again()

    async def start(self) -> None:
        """Read the repositories' configurations and listen.

        Raises OSError if an address cannot be used, and StartError if an object store cannot be
        read.
        """
        try:
            await self._start()
        except StoreError as error:
            raise StartError(f"--model-repository: {error.text}") from error

    async def _start(self) -> None:
        self._environment.timeline.events.record("scheduler started", self._facts.name)
        documents = await self._read_state()
        self._mesh_settings.restore(documents or {})
        self._watch_traffic_file()
        self._models.traffic.restore(documents or {})
        self._environment.state.settings.apply(
            documents or {}, SIZES, self._models.on_demand.restore_sizes
        )
        records = self._model_records(documents or {})
        moves, shard = self._models.moves, self._models.shard
        if moves is None or shard is None:
            await self._models.control.start(records)
            await self._listen()
        else:
            await moves.scan()
            await self._listen()
            await shard.start()
            if documents is not None and self._settings.model_control_mode == EXPLICIT:
                # Peers had its models until now: clients may have unloaded some meanwhile.
                records = self._model_records(await self._read_state() or {})
            await self._models.control.start(records)
            shard.update()
        self._models_begun.set()
        self._models.rollouts.start()
        self._started = True
        if self._remote_control is not None:
            self._remote_control.started.set()
        self._gateways.start()
        if self._settings.exit_on_error:
            self._first_loads = asyncio.ensure_future(self._watch_first_loads())

    def _watch_traffic_file(self) -> None:
        path = self._settings.traffic_file
        if not path:
            return
        try:
            content = read_traffic_file(path)
        except FileError as error:
            raise StartError(f"--traffic-file: {error}") from error
        self._models.traffic.set_file(content)
        self._traffic_watch = watch_traffic_file(path, content, self._models.traffic.set_file)
        self._traffic_watch.start()

    async def _read_state(self) -> Documents | None:
        """Return what is saved; `None` if it cannot be read yet. It is then restored later."""
        documents = await self._environment.state.read(self._restore)
        if documents is None and self._settings.model_control_mode == EXPLICIT:
            self._models.control.await_records()
        return documents

    async def _listen(self) -> None:
        self._models.loader.first_runs.restart_grace()
        self.addresses += await self._environment.ports.listen(self.handlers())
        _log.info("listening at %s", ", ".join(self.addresses))

    @property
    def ready(self) -> bool:
        """True if the service is started and not stopping, whether or not its models are ready."""
        return self._started and not self._control.stopping

    def exposure(self) -> str:
        """Return a text for the log: each address and who may connect to it."""
        settings = self._settings
        return "; ".join(
            f"to {settings.mesh_users(address)} at {address}: the mesh"
            for address in self.addresses
        )

    def _model_records(self, documents: Documents) -> dict[str, ModelRecord]:
        models = self._environment.state.models
        explicit = self._settings.model_control_mode == EXPLICIT
        return {} if models is None or not explicit else models.parse(documents)

    async def _restore(self, documents: Documents) -> None:
        """Apply the saved state, if it could be read only after the start."""
        await self._models_begun.wait()
        self._mesh_settings.restore(documents)
        self._models.traffic.restore(documents)
        await self._models.control.restore(self._model_records(documents))
        self._models_changed()

    async def _watch_first_loads(self) -> None:
        if not await self._models.control.first_loads():
            _log.error("failed to load all models; the scheduler ends, as --exit-on-error asks")
            self.failed_start = True
            self._on_failed_start()

    async def drain(self, timeout_s: float) -> None:
        """Finish the accepted requests and end the scheduler.

        New requests, and queued ones that cannot run, return to their gateways. After `timeout_s`
        seconds all queued requests do, and executing ones fail.
        """
        self._control.stopping = True
        # Announce this first: new requests belong to another scheduler from now on.
        handed_over = False
        if self._models.shard is not None:
            handed_over = self._models.shard.leave()
        else:
            self._gateways.announce_leaving()
        self._admission.stop()
        self._return_entries(lambda entry: entry.owner.is_blocked(entry))
        if self._first_loads is not None:
            self._first_loads.cancel()
        if self._traffic_watch is not None:
            await self._traffic_watch.close()
        await self._models.rollouts.close()
        if handed_over:
            await self._models.reconciler.finish_hand_overs(timeout_s)
        await self._models.reconciler.tasks.close()
        await self._models.on_demand.close()
        await self._environment.state.close()
        models = [
            served.runtime for served in self._models.loader.versions if served.runtime is not None
        ]
        waits = [asyncio.ensure_future(self._models.load_queue.idle())]
        waits += [asyncio.ensure_future(model.idle()) for model in models]
        _, unfinished = await asyncio.wait(waits, timeout=timeout_s)
        for wait in unfinished:
            wait.cancel()
        if unfinished:
            _log.warning(
                "requests are still pending after %g s; executing requests are failed", timeout_s
            )
            self._return_entries(lambda _: True)
        error = Unavailable(STOPPING_MESSAGE, accepted=True, retry_after_ms=DEFAULT_MS)
        self._models.load_queue.fail_all(error)
        for model in models:
            model.fail_all(error)
            model.close()
        await self._flush()

    def _return_entries(self, is_chosen: Callable[[Entry], bool]) -> None:
        entries = [
            entry for session in self._gateways.sessions for entry in session.client_entries()
        ]
        # Choose all before the first returns: a returned entry may unblock others of its sequence.
        for entry in [entry for entry in entries if is_chosen(entry)]:
            entry.owner.return_entry(entry, stopping_response(entry.request))

    async def _flush(self) -> None:
        self._models.loader.stop()
        self._gateways.send_notice(LastCounts(self._counts.last_response().SerializeToString()))
        await self._gateways.close(_LAST_WRITES_S)
        if self._models.shard is not None:
            await self._models.shard.close()
        # Executors see an end, not a lost connection; no port is left to join again.
        for session in [*self._models.loader.sessions]:
            session.stream.finish()
        await self._environment.ports.close()
        await self._environment.cache.close()
        await asyncio.to_thread(self._environment.traces.close)

    def _notices(self, shares: bool) -> Iterator[Notice]:
        # Before the notice after which a gateway sends requests.
        yield self._models.traffic.keys
        if self._models.traffic.shadows.models:
            yield self._models.traffic.shadows
        yield self._cached_models(shares)
        yield ModelsChanged(self._changes)
        yield from self._mesh_settings.notices()
        if self._models.shard is not None:
            yield self._models.shard.notice()

    def _cached_models(self, shares: bool) -> CachedModels:
        # An empty domain tells a gateway that shares no memory to send tensors inline.
        domain = self._environment.segment_owners.domain if shares else ""
        if self._environment.cache.responses is None:
            return CachedModels((), domain)
        key = self._environment.cache.responses.secrets.request_key
        return CachedModels(self._models.catalogue.cached_models(), domain, key)

    def _memory_of(self, served: ServedVersion) -> Mapping[str, int]:
        return memory_of(served, self._models.loader.sessions)

    def _models_changed(self, name: str = "") -> None:
        """Announce what has changed. name: of the only model that has; empty: any may have."""
        # Gateways learn what they have to send before a request can depend on it.
        keys = self._models.traffic.refresh(name)
        if keys is not None:
            self._gateways.send_notice(keys)
        shadows = self._models.traffic.refresh_shadows(name)
        if shadows is not None:
            self._gateways.send_notice(shadows)
        self._admission.models_changed()
        self._changes += 1
        self._gateways.send_notice(ModelsChanged(self._changes))
        if self._models.shard is not None:
            self._models.shard.models_changed()
        if self._environment.cache.responses is None:
            return
        names = self._models.catalogue.cached_models()
        if self._announced != names:
            self._announced = names
            self._gateways.send_to_each(self._cached_models)

    def _on_handed_over(self, served: ServedVersion, runtime: ModelVersion) -> None:
        self._counts.on_handed_over(served, runtime)
        if self._models.shard is not None:
            self._models.shard.announce_again()

    def _accept_peer(self, call: Call) -> None:
        assert self._models.shard is not None, "the mesh's only scheduler"
        call.set_keepalive(*self._settings.keepalive(replaceable=True))
        self._models.shard.accept_peer(call)

    def _send_notice(self, notice: Notice) -> None:
        self._gateways.send_notice(notice)

    def _send_command(self, command: pb.ExecutorCommand) -> None:
        for session in self._models.loader.sessions:
            session.send(command)


def _accepting(respond: Respond) -> AsyncUnaryHandler:
    async def handle(call: Call, message: bytes) -> bytes:
        # Accepting the call tells the caller that the scheduler is alive, however long models take.
        call.accept()
        return await respond(message)

    return handle
