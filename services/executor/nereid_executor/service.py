"""The executor: joins every scheduler of the mesh, again after each session, until leave()."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.files.temporary_directories import SANDBOX, TemporaryDirectory
from nereid.mesh_auth.roles import Role
from nereid.object_store.settings import default_cache_directory, store_environ
from nereid.object_store.stores import CachePlace, ModelStores
from nereid.observability.tracers import open_tracer
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import ChannelOptions, SocketChannel
from nereid.rpc.net.backoff import BackoffOptions
from nereid.rpc.net.scheduler_addresses import only_address, parse_addresses, watch_addresses
from nereid_executor.backends.native.backend import start_fork_servers
from nereid_executor.backends.python.packages.model_packages import ModelPackages
from nereid_executor.backends.python.sandbox.given_connections import can_refuse_connections
from nereid_executor.backends.python.sandbox.policy import (
    WORKER_SANDBOX,
    missing_protection,
    provided_protection,
)
from nereid_executor.backends.python.supervisor import environments
from nereid_executor.backends.python.supervisor.stopped_workers import STOPPED_WORKERS
from nereid_executor.batch.timeline import ExecutorTimeline
from nereid_executor.core import devices
from nereid_executor.core.cores import usable_cores
from nereid_executor.core.heap import limit_arenas
from nereid_executor.core.mesh_client import Mesh
from nereid_executor.core.model_files import read_model_files
from nereid_executor.core.nvtx_ranges import open_ranges
from nereid_executor.core.shared_tensors import SharedTensors
from nereid_executor.instances.description_runs import (
    DescriptionLimits,
    DescriptionRuns,
)
from nereid_executor.instances.descriptions import Descriptions
from nereid_executor.instances.instance_context import InstanceContext
from nereid_executor.instances.kept_instances import KeptInstances
from nereid_executor.instances.load_slots import LoadSlots
from nereid_executor.instances.session_instances import ExecutorInstances
from nereid_executor.instances.tenure import SchedulerEndpoint
from nereid_executor.repository.agents import RepositoryAgents, installed_agents
from nereid_executor.repository.model_directories import ModelDirectories
from nereid_executor.session import metrics
from nereid_executor.session.scheduler_sessions import SchedulerSessions
from nereid_executor.session.session import SessionContext
from nereid_executor.settings import visible_gpus

if TYPE_CHECKING:
    from nereid.mesh_routing.several.scheduler_channels import SchedulerChannels
    from nereid.observability.metrics_page import Page
    from nereid_executor.backends.registry import BackendRegistry
    from nereid_executor.instances.instance import Instance
    from nereid_executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

# The longest pause is no longer than the pause between sessions (scheduler_sessions.py).
_BACKOFF: Final = BackoffOptions(first_s=0.005, factor=1.2, largest_s=1.0)


class ExecutorService:
    """One executor. Create it inside the event loop in which it will run."""

    def __init__(self, settings: ExecutorSettings, backends: BackendRegistry) -> None:
        self._settings = settings
        self._backends = backends
        self._agents = RepositoryAgents(installed_agents())
        self._leaving = asyncio.Event()
        # Key: an address. `_addresses` are the addresses that schedulers have now.
        self._schedulers: dict[str, SchedulerSessions] = {}
        self._addresses: set[str] = set()
        self._specs = parse_addresses(settings.scheduler_address)
        self._instances: ExecutorInstances | None = None
        self._ended_batches: Counter[tuple[str, int]] = Counter()

    def write_metrics(self, page: Page) -> None:
        """Write the metrics of the executor itself, not of the mesh."""
        instances: list[Instance] = []
        if self._instances is not None:
            instances += self._instances.kept
        for sessions in self._schedulers.values():
            if sessions.session is not None:
                instances += sessions.session.instances
        metrics.write_metrics(page, self._joined, instances, self._ended_batches)

    @property
    def ready(self) -> bool:
        """True if the executor has joined, is not leaving, and has loaded its instances."""
        joined = [sessions.session for sessions in self._schedulers.values() if sessions.joined]
        instances = [
            instance for session in joined if session is not None for instance in session.instances
        ]
        has_loaded = all(instance.loaded for instance in instances)
        return bool(joined) and not self._leaving.is_set() and has_loaded

    def leave(self) -> None:
        """Begin to leave all schedulers.

        run() returns after the current batches, or after --exit-timeout-secs.
        """
        self._leaving.set()

    def _preload(self) -> None:
        self._backends.preload(self._settings.preload_backend)
        if self._settings.sandbox_models:
            start_fork_servers(self._backends, self._settings)

    async def run(self) -> bool:
        """Serve until leave(); return False if a batch still ran at the end of the timeout."""
        settings = self._settings
        if settings.malloc_arenas:
            limit_arenas(settings.malloc_arenas)
        if settings.preload_backend:
            threading.Thread(target=self._preload, name="preload", daemon=True).start()
        description_runs = DescriptionRuns(
            DescriptionLimits(
                settings.model_describe_timeout_secs, settings.model_load_thread_count
            )
        )
        shared_tensors = SharedTensors(settings.shm_limit_bytes, settings.shm_idle_secs)
        # If there are GPUs, this call imports model runtimes, which takes seconds.
        hello = await asyncio.to_thread(make_hello, settings, self._backends)
        if settings.sandbox_models:
            hello.sandbox = await asyncio.to_thread(_begin_confinement, settings)
        hello.repository_agents.extend(self._agents.names)
        hello.shm_namespace, hello.process = shared_tensors.domain, shared_tensors.process
        tracer = open_tracer(settings, "executor", hello.name)
        timeline = None
        if settings.timeline_seconds:
            timeline = ExecutorTimeline(hello.name, settings.timeline_seconds)
        hello.records_timeline = timeline is not None
        hello.drains = True
        credentials = settings.mesh_credentials(Role.EXECUTOR)
        kept = KeptInstances(settings.or_restart(settings.kept_instance_secs), self._is_commanded)
        directories = make_directories(settings, self._agents)
        self._instances = instances = ExecutorInstances(
            settings,
            InstanceContext(
                backends=self._backends,
                credentials=None if credentials is None else credentials.metadata,
                load_slots=LoadSlots(settings.model_load_thread_count),
                shared_tensors=shared_tensors,
                tracer=tracer,
                times=settings.recovery,
                timeline=timeline,
                ranges=open_ranges() if settings.nvtx else None,
            ),
            kept,
            cores=settings.cpu_cores or usable_cores(),
            ended_batches=self._ended_batches,
            directories=directories,
        )
        descriptions = Descriptions(read_model_files)
        schedulers, mesh = self._open_mesh(hello.shm_namespace)
        context = SessionContext(
            settings, hello, description_runs, descriptions, instances, self.leave, mesh
        )
        stopped_limit_s = settings.recovery.ping_reply_s
        tasks = (
            asyncio.ensure_future(_trim_memory(shared_tensors)),
            asyncio.ensure_future(STOPPED_WORKERS.run(stopped_limit_s)),
        )
        joining = asyncio.ensure_future(self._join_all(context))
        joining.add_done_callback(lambda _: self._leaving.set())
        try:
            await self._leaving.wait()
            if joining.done():
                joining.result()
            return await self._leave_all(instances)
        finally:
            for task in (joining, *tasks):
                task.cancel()
            kept.close()
            await directories.close()
            if mesh is not None and schedulers is not None:
                mesh.close()
                await schedulers.close()
            description_runs.close()
            await asyncio.to_thread(environments.discard)
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    def _is_commanded(self) -> bool:
        return any(sessions.is_commanded for sessions in self._schedulers.values())

    @property
    def _joined(self) -> bool:
        return any(sessions.joined for sessions in self._schedulers.values())

    def _open_mesh(self, domain: str) -> tuple[SchedulerChannels | None, Mesh | None]:
        """Open the connections by which models reach all schedulers.

        `None` if there is a single scheduler: models reach it through the session.
        """
        settings = self._settings
        if only_address(settings.scheduler_address) is not None:
            return None, None
        from nereid.mesh_routing.several.scheduler_channels import SchedulerChannels  # noqa: PLC0415

        schedulers = SchedulerChannels(self._specs, self._open_channel, domain)
        memory = settings.shm_limit_bytes, settings.shm_idle_secs
        return schedulers, Mesh(
            None, domain, memory, schedulers, reconnect_limit_s=settings.recovery.model_call_s
        )

    async def _join_all(self, context: SessionContext) -> None:
        async with asyncio.TaskGroup() as group:
            async for addresses in watch_addresses(self._specs):
                self._addresses = set(addresses)
                for address in addresses:
                    if address not in self._schedulers:
                        self._schedulers[address] = self._dial(context, address)
                        group.create_task(self._join(context, address))

    async def _join(self, context: SessionContext, address: str) -> None:
        while True:
            sessions = self._schedulers[address]
            await sessions.run(self._leaving, lambda: address in self._addresses)
            if self._leaving.is_set():
                return
            await sessions.close()
            if address not in self._addresses:
                del self._schedulers[address]
                return
            self._schedulers[address] = self._dial(context, address)

    def _dial(self, context: SessionContext, address: str) -> SchedulerSessions:
        is_only = only_address(self._settings.scheduler_address) is not None
        label = "the scheduler" if is_only else f"the scheduler at {address}"
        endpoint = SchedulerEndpoint(address, self._settings.mesh_tls_client(address))
        return SchedulerSessions(context, self._open_channel(address), endpoint, label)

    def _open_channel(self, address: str) -> SocketChannel:
        settings = self._settings
        # If a scheduler does not reply, its session and the streams of its instances end.
        options = settings.with_keepalive(
            ChannelOptions(backoff=_BACKOFF),
            replaceable=only_address(settings.scheduler_address) is None,
        )
        return SocketChannel(address, settings.mesh_channel(address, Role.EXECUTOR, options))

    async def _leave_all(self, instances: ExecutorInstances) -> bool:
        loop = asyncio.get_running_loop()
        timeout_s = self._settings.exit_timeout_secs
        deadline = loop.time() + timeout_s
        schedulers = list(self._schedulers.values())
        leaving = (sessions.leave(timeout_s) for sessions in schedulers)
        leaves = await asyncio.gather(*leaving)
        kept = instances.kept
        left_s = max(0.0, deadline - loop.time())
        finished = await kept.unload(kept.take_all(), left_s) and all(leaves)
        await asyncio.gather(*(sessions.close() for sessions in schedulers))
        return finished


async def _trim_memory(shared_tensors: SharedTensors) -> None:
    while True:
        await asyncio.sleep(shared_tensors.trim_interval_s)
        shared_tensors.trim_idle()


def make_directories(settings: ExecutorSettings, agents: RepositoryAgents) -> ModelDirectories:
    """Create the object that prepares models' files and packages before their loads."""
    named = settings.repository_cache_directory
    place = CachePlace(
        Path(named) if named else None, default_cache_directory(), settings.repository_cache_bytes
    )
    stores = ModelStores(store_environ(), place)
    return ModelDirectories(settings.local_path, stores, agents, ModelPackages(settings))


def _begin_confinement(settings: ExecutorSettings) -> str:
    """Confine later workers; return "complete", or what the kernel leaves open."""
    addresses = [spec.text for spec in parse_addresses(settings.scheduler_address)]
    has_unix_sockets = can_refuse_connections(addresses)
    if not has_unix_sockets:
        _log.info(
            "workers of models have no Unix sockets: with schedulers over TCP, this kernel needs"
            " CAP_NET_ADMIN to keep workers from listening"
        )
    WORKER_SANDBOX.configure(settings, has_unix_sockets=has_unix_sockets)
    with TemporaryDirectory.make(SANDBOX) as directory:
        missing = missing_protection(provided_protection(directory.path))
    if not missing:
        _log.info("workers of models are confined: files, network, processes, system calls")
        return "complete"
    text = "; ".join(missing)
    _log.warning("workers of models are confined in part: %s", text)
    return text


def make_hello(settings: ExecutorSettings, backends: BackendRegistry) -> pb.Hello:
    """Return the hello, which lists what this executor offers."""
    return pb.Hello(
        name=settings.own_name(),
        host=devices.host_identity(),
        host_name=socket.gethostname(),
        devices=[devices.cpu(), *offered_gpus(settings, backends)],
        backends=backends.available_backends(),
        python_based=backends.python_based_backends(),
    )


def offered_gpus(settings: ExecutorSettings, backends: BackendRegistry) -> list[pb.Device]:
    """Return the GPUs that the settings select, or none if no backend here can use GPUs."""
    gpus = devices.gpus(visible_gpus()) if settings.gpus != "none" else []
    if gpus and not backends.any_uses_gpus():
        _log.warning("%d GPUs are not offered: no backend installed here can use them", len(gpus))
        return []
    offered = settings.select_gpus([gpu.id for gpu in gpus])
    return [gpu for gpu in gpus if gpu.id in offered]
