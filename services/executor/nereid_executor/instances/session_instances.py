"""The instances of one session with a scheduler. Used on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from nereid.backends import InstanceSpec
from nereid.core.errors import NereidError
from nereid.core.wire.codecs import write_error
from nereid.core.wire.messages import error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.python.supervisor.environments import with_environment
from nereid_executor.core.cores import threads_per_instance
from nereid_executor.core.model_files import read_model_files
from nereid_executor.core.shared_tensors import OutputLender
from nereid_executor.instances.claims.begun_reports import BegunReport, BegunReports
from nereid_executor.instances.claims.model_claims import ModelClaims, Rank
from nereid_executor.instances.instance import Instance
from nereid_executor.instances.kept_instances import InstanceContent, model_of
from nereid_executor.instances.tenure import InstanceCallbacks, Tenure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from nereid.backends import MeshClient
    from nereid.core.wire.messages import ErrorStatus
    from nereid_executor.instances.claims.model_claims import Grant
    from nereid_executor.instances.instance_context import InstanceContext
    from nereid_executor.instances.kept_instances import KeptInstances
    from nereid_executor.instances.tenure import SchedulerEndpoint
    from nereid_executor.repository.model_directories import (
        ModelDirectories,
        PreparedVersion,
    )
    from nereid_executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

# Words in the error of a load that failed for lack of memory. It may succeed after other models
# have been unloaded.
_MEMORY_WORDS: Final = ("memory", "alloc")


@dataclass(eq=False)
class ExecutorInstances:
    """All instances of an executor."""

    settings: ExecutorSettings
    context: InstanceContext
    kept: KeptInstances
    cores: int = 1
    make_instance: Callable[[InstanceSpec, InstanceContext, Tenure], Instance] = Instance
    # Key: model and version. Value: completed batches of ended instances.
    ended_batches: Counter[tuple[str, int]] = field(default_factory=Counter)
    claims: ModelClaims = field(default_factory=ModelClaims)
    # If `None`, models are loaded directly from the scheduler's paths.
    directories: ModelDirectories | None = None
    # Key: an instance. Value: the directory from which it was loaded, until it has ended.
    prepared: dict[Instance, PreparedVersion] = field(default_factory=dict)
    begun: BegunReports = field(init=False)

    def __post_init__(self) -> None:
        self.begun = BegunReports(self.context.recent_runs.begun_ids)

    def carry_out(self, decisions: Iterable[BegunReport | Grant]) -> None:
        """Let sessions send the reports that were decided, and begin the granted instances."""
        for decision in decisions:
            session = cast("SessionInstances", decision.session)
            if isinstance(decision, BegunReport):
                session.send_begun(decision)
            else:
                session.on_granted(decision.instance)


@dataclass(eq=False)
class _Requested:
    command: pb.LoadInstance
    content: InstanceContent
    # `None` while the request waits: for instances of other schedulers to end, for the model's
    # files, or for kept instances to be unloaded.
    instance: Instance | None = None
    # The prepared directory, until an instance is loaded from it.
    prepared: PreparedVersion | None = None
    # A kept instance whose files have changed. If loading the changed files fails, it serves again.
    outdated_instance: Instance | None = None
    preparation: asyncio.Task[object] | None = None
    is_wanted: bool = True

    @property
    def number(self) -> int:
        """Number that the scheduler has given the instance."""
        return self.command.instance

    def path(self, settings: ExecutorSettings) -> Path:
        """Return the directory of the model's files on this host."""
        if self.prepared is not None:
            return self.prepared.path
        return Path(settings.local_path(self.command.version_path))

    def release_prepared(self) -> None:
        """Release the prepared directory, if there is one."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.release()


class SessionInstances:
    """The instances that one scheduler has asked for. The scheduler numbers its instances."""

    def __init__(
        self,
        shared: ExecutorInstances,
        endpoint: SchedulerEndpoint,
        mesh: MeshClient,
        send_event: Callable[[pb.ExecutorEvent], None],
        on_objects_changed: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._endpoint = endpoint
        self._mesh = mesh
        self._send_event = send_event
        self._on_objects_changed = on_objects_changed
        self._loop = asyncio.get_running_loop()
        self._requested: dict[int, _Requested] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        # Lenders of the segments that this scheduler should release.
        self._lenders: WeakSet[OutputLender] = WeakSet()
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __iter__(self) -> Iterator[Instance]:
        instances = [requested.instance for requested in self._requested.values()]
        return iter([instance for instance in instances if instance is not None])

    def find(self, number: int) -> Instance | None:
        """Return the instance with this number; `None` if there is none or it has ended."""
        requested = self._requested.get(number)
        return None if requested is None else requested.instance

    def load(self, command: pb.LoadInstance) -> None:
        """Adopt or load an instance, as soon as no other session has instances of the model."""
        number = command.instance
        if number in self._requested:
            _log.error("the scheduler requested instance %d twice; ignored", number)
            return
        self._requested[number] = _Requested(command, InstanceContent.of_command(command))
        self.none_left.clear()
        self._shared.begun.session_commanded(self, command.scheduler)
        rank = Rank(command.epoch, command.scheduler)
        if self._shared.claims.claim(model_of(command), self, number, rank):
            self.on_granted(number)
        else:
            _log.info(
                "instance %s waits: another scheduler has instances of model '%s'",
                command.instance_name,
                model_of(command),
            )

    def unload(self, number: int, *, keep: bool = False) -> None:
        """Give up an instance. `keep` means that another scheduler will ask for it."""
        requested = self._requested.get(number)
        if requested is not None and requested.instance is not None:
            requested.instance.stop(keep=keep and self._shared.kept.keep_s > 0)
            return
        if requested is not None:
            self._forget(requested)
        self._send_event(_unloaded(number))

    def on_granted(self, number: int) -> None:
        """Begin an instance, since no other session has instances of its model now."""
        requested = self._requested.get(number)
        if requested is None:
            return  # the instance was unloaded meanwhile
        directories = self._shared.directories
        if directories is not None and directories.needs_preparation(requested.command):
            requested.preparation = self._run(self._prepare(directories, requested))
        else:
            self._begin(requested)

    async def _prepare(self, directories: ModelDirectories, requested: _Requested) -> None:
        try:
            prepared = await directories.prepare(
                requested.command,
                lambda text: self._send_event(_load_progress(requested.number, text)),
            )
        except NereidError as error:
            requested.preparation = None
            if requested.is_wanted:
                self._send_event(_failed(requested.number, error_status_of(error)))
                self._forget(requested)
            return
        requested.preparation = None
        if requested.is_wanted:
            requested.prepared = prepared
            self._begin(requested)
        else:
            prepared.release()

    def _begin(self, requested: _Requested) -> None:
        content, kept = requested.content, self._shared.kept
        obsolete, instance = kept.take_obsolete(content), kept.take(content)
        for excess in kept.take_excess(requested.command.kept_bytes):
            _log.info(
                "unloading kept instance %s: instance %s needs its memory",
                excess.spec.name,
                requested.command.instance_name,
            )
            obsolete.append(excess)
        if instance is None and not obsolete:
            self._load(requested)
        else:
            self._run(self._adopt_or_load(requested, instance, obsolete))

    def stop_all(self) -> None:
        """Stop all instances, each after its current batch."""
        self._forget_waiting()
        for instance in self:
            instance.stop()

    def abandon_all(self) -> None:
        """Let instances finish their executions after the scheduler was lost; they stay loaded."""
        shared = self._shared
        shared.begun.session_ending(self)
        shared.claims.end_waiting(self)
        self._forget_waiting()
        keep = shared.kept.keep_s > 0
        for instance in self:
            instance.stop(abandon=True, keep=keep)
        for requested in list(self._requested.values()):
            # A loading instance continues to load. It executes nothing, so it counts as kept.
            if keep and requested.instance is not None and not requested.instance.loaded:
                self._on_kept(requested, requested.instance)

    def report_end(self) -> None:
        """Let other sessions adopt the instances. Most have finished since abandon_all()."""
        self._shared.carry_out(self._shared.begun.session_ended(self))

    def expire(self) -> None:
        """Stop waiting for batches that still execute some time after abandon_all()."""
        for lender in self._lenders:
            lender.discard_lent()
        self._shared.carry_out(self._shared.begun.grant(self._shared.claims.expire(self)))

    def send_begun(self, report: BegunReport) -> None:
        """Tell the scheduler which requests have begun."""
        begun = pb.BegunRequests(ids=report.ids, query=report.query)
        self._send_event(pb.ExecutorEvent(begun_requests=begun))

    def _run(self, work: Coroutine[None, None, object]) -> asyncio.Task[object]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _adopt_or_load(
        self, requested: _Requested, instance: Instance | None, obsolete: list[Instance]
    ) -> None:
        kept = self._shared.kept
        if instance is not None:
            path = requested.path(self._shared.settings)
            files = await asyncio.to_thread(read_model_files, path)
            if instance.files is None or not instance.files.same_in(files):
                _log.info("the files of kept instance %s have changed", instance.spec.name)
                requested.outdated_instance = instance
            elif not requested.is_wanted:
                kept.add(instance, requested.content)
            elif instance.adopt(self._make_tenure(requested)):
                _log.info("instance %s is adopted", instance.spec.name)
                requested.instance = instance
                requested.release_prepared()
        await kept.unload(obsolete, self._shared.context.times.instance_stop_s)
        if not requested.is_wanted:
            self._keep_outdated(requested)
        elif requested.instance is None:
            self._load(requested)

    def _keep_outdated(self, requested: _Requested) -> None:
        outdated, requested.outdated_instance = requested.outdated_instance, None
        if outdated is not None:
            self._shared.kept.add(outdated, requested.content)

    def _on_loaded(self, requested: _Requested) -> None:
        outdated, requested.outdated_instance = requested.outdated_instance, None
        if outdated is not None:
            limit_s = self._shared.context.times.instance_stop_s
            self._run(self._shared.kept.unload([outdated], limit_s))
        self._on_objects_changed()

    def _adopt_outdated(self, requested: _Requested, error: ErrorStatus) -> bool:
        """Let the outdated instance serve, if there is one; return whether it does."""
        outdated, requested.outdated_instance = requested.outdated_instance, None
        if outdated is None or not outdated.adopt(self._make_tenure(requested)):
            return False
        _log.warning(
            "instance %s goes on with the files that it was loaded from, since the changed ones"
            " cannot be loaded: %s",
            outdated.spec.name,
            error.message,
        )
        requested.instance = outdated
        requested.release_prepared()
        return True

    def _load(self, requested: _Requested) -> None:
        shared, command = self._shared, requested.command
        config, prepared = command.config, requested.prepared
        if prepared is not None and prepared.environment is not None:
            config = with_environment(config, prepared.environment)
        spec = InstanceSpec(
            config=config,
            version=command.version,
            version_path=requested.path(shared.settings),
            name=command.instance_name,
            gpu=command.device_id if command.kind == pb.Device.GPU else None,
            settings=dict(command.backend_settings),
            threads=threads_per_instance(shared.cores, command.config),
        )
        instance = shared.make_instance(spec, shared.context, self._make_tenure(requested))
        if requested.prepared is not None:
            shared.prepared[instance] = requested.prepared
            requested.prepared = None
        requested.instance = instance
        instance.start()

    def _make_tenure(self, requested: _Requested) -> Tenure:
        number = requested.number
        tensors = self._shared.context.shared_tensors
        lender: OutputLender | None = None
        if tensors.domain == requested.command.shm_namespace != "":
            lender = OutputLender(tensors)
            self._lenders.add(lender)
        run = self._run_on_loop
        callbacks = InstanceCallbacks(
            on_loaded=lambda: run(self._on_loaded, requested),
            on_ended=lambda instance, error: run(self._on_ended, requested, instance, error),
            on_kept=lambda instance: run(self._on_kept, requested, instance),
            on_model_lost=lambda *lost: run(self._send_event, _model_lost(number, *lost)),
        )
        return Tenure(number, self._endpoint, callbacks, self._mesh, lender)

    def _run_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    def _on_kept(self, requested: _Requested, instance: Instance) -> None:
        if requested.instance is instance:
            self._shared.kept.add(instance, requested.content)
            self._send_event(_unloaded(requested.number))
            self._forget(requested)

    def _on_ended(
        self, requested: _Requested, instance: Instance, error: ErrorStatus | None
    ) -> None:
        # Without a new collection, reference cycles of the model would stay frozen.
        self._on_objects_changed()
        shared = self._shared
        shared.ended_batches[instance.version] += instance.batches
        shared.kept.instance_ended(instance)
        prepared = shared.prepared.pop(instance, None)
        if requested.instance is not instance:
            if prepared is not None:
                prepared.release()
            return
        # The directory stays prepared until it is known whether the instance is loaded again.
        requested.prepared = prepared
        if error is None:
            self._send_event(_unloaded(requested.number))
        elif (
            not instance.loaded
            and (requested.outdated_instance is not None or len(shared.kept) > 0)
            and _is_about_memory(error)
        ):
            _log.warning("kept instances are unloaded, to free memory for %s", instance.spec.name)
            requested.instance = None
            self._keep_outdated(requested)
            self._run(self._adopt_or_load(requested, None, shared.kept.take_all()))
            return
        elif not instance.loaded and self._adopt_outdated(requested, error):
            return
        else:
            self._send_event(_failed(requested.number, error))
        self._forget(requested)

    def _forget_waiting(self) -> None:
        for requested in list(self._requested.values()):
            self._keep_outdated(requested)
            if requested.instance is None:
                self._forget(requested)

    def _forget(self, requested: _Requested) -> None:
        if requested.preparation is not None:
            # A preparation that no other instance needs ends, whatever it has begun.
            requested.preparation.cancel()
        requested.release_prepared()
        self._keep_outdated(requested)
        requested.instance, requested.is_wanted = None, False
        del self._requested[requested.number]
        if not self._requested:
            self.none_left.set()
        shared = self._shared
        grants = shared.claims.release(model_of(requested.command), self, requested.number)
        shared.carry_out(shared.begun.grant(grants))


def _unloaded(number: int) -> pb.ExecutorEvent:
    return pb.ExecutorEvent(instance_unloaded=pb.InstanceUnloaded(instance=number))


def _load_progress(number: int, text: str) -> pb.ExecutorEvent:
    return pb.ExecutorEvent(load_progress=pb.LoadProgress(instance=number, text=text))


def _failed(number: int, error: ErrorStatus) -> pb.ExecutorEvent:
    failed = pb.InstanceFailed(instance=number)
    write_error(error, failed.error)
    return pb.ExecutorEvent(instance_failed=failed)


def _model_lost(
    number: int, stream: int, last_batch: int, error_status: ErrorStatus
) -> pb.ExecutorEvent:
    lost = pb.InstanceLost(instance=number, stream=stream, begun=last_batch)
    write_error(error_status, lost.error)
    return pb.ExecutorEvent(instance_lost=lost)


def _is_about_memory(error_status: ErrorStatus) -> bool:
    message = error_status.message.lower()
    return any(word in message for word in _MEMORY_WORDS)
