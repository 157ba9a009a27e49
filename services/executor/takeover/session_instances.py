"""The instances of one session with a scheduler: claimed, adopted or loaded, and given up again.

Runs on the event loop; instances live in threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from nereid.backends import InstanceSpec
from nereid.core.codecs import write_error
from nereid.core.errors import NereidError
from nereid.core.messages import error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.cores import threads_per_instance
from nereid.services.executor.instance import Instance
from nereid.services.executor.shared_tensors import OutputLender
from nereid.services.executor.takeover.begun_reports import BegunReport, BegunReports
from nereid.services.executor.takeover.kept_instances import InstanceContent, model_of
from nereid.services.executor.takeover.model_claims import ModelClaims, Rank
from nereid.services.executor.takeover.model_files import read_model_files
from nereid.services.executor.takeover.tenure import InstanceCallbacks, Tenure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from nereid.backends import MeshClient
    from nereid.core.messages import ErrorStatus
    from nereid.services.executor.instance import InstanceContext
    from nereid.services.executor.repository.model_directories import (
        ModelDirectories,
        PreparedVersion,
    )
    from nereid.services.executor.settings import ExecutorSettings
    from nereid.services.executor.takeover.kept_instances import KeptInstances
    from nereid.services.executor.takeover.model_claims import Grant
    from nereid.services.executor.takeover.tenure import SchedulerEndpoint

_log = logging.getLogger(__name__)

# In the errors of loads that may succeed once other models are unloaded.
_MEMORY_WORDS: Final = ("memory", "alloc")


@dataclass(eq=False)
class ExecutorInstances:
    """All instances of an executor."""

    settings: ExecutorSettings
    context: InstanceContext
    kept: KeptInstances
    # That models' threads may use.
    cores: int = 1
    # What loads one and serves its stream.
    make_instance: Callable[[InstanceSpec, InstanceContext, Tenure], Instance] = Instance
    # Completed batches of instances that have ended, by model and version.
    ended_batches: Counter[tuple[str, int]] = field(default_factory=Counter)
    claims: ModelClaims = field(default_factory=ModelClaims)
    # None: models are loaded from where the scheduler says that they are.
    directories: ModelDirectories | None = None
    # Of instances, until they have ended.
    prepared: dict[Instance, PreparedVersion] = field(default_factory=dict)
    begun: BegunReports = field(init=False)

    def __post_init__(self) -> None:
        self.begun = BegunReports(self.context.recent_runs.begun_ids)

    def carry_out(self, decisions: Iterable[BegunReport | Grant]) -> None:
        """Have sessions send, and begin, what was decided."""
        for each in decisions:
            session = cast("SessionInstances", each.session)
            if isinstance(each, BegunReport):
                session.send_begun(each)
            else:
                session.on_granted(each.instance)


class SessionInstances:
    """Those that one scheduler has asked for, by its numbers."""

    def __init__(
        self,
        shared: ExecutorInstances,
        endpoint: SchedulerEndpoint,
        mesh: MeshClient,
        send_event: Callable[[pb.ExecutorEvent], None],
        on_objects_changed: Callable[[], None],
    ) -> None:
        """on_objects_changed: called when a model was loaded or closed."""
        self._shared = shared
        self._endpoint = endpoint
        self._mesh = mesh
        self._send_event = send_event
        self._on_objects_changed = on_objects_changed
        self._loop = asyncio.get_running_loop()
        # All that were asked for; those without an instance wait for other schedulers' to end.
        self._commands: dict[int, pb.LoadInstance] = {}
        self._instances: dict[int, Instance] = {}
        # Directories of instances that are not loaded yet.
        self._prepared: dict[int, PreparedVersion] = {}
        # Kept instances whose files have changed since, while those are loaded: if that fails, the
        # last version that could be loaded goes on.
        self._former: dict[int, Instance] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        # They have segments that this scheduler should release.
        self._lenders: WeakSet[OutputLender] = WeakSet()
        self.none_left = asyncio.Event()
        self.none_left.set()

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._instances.values()))

    def find(self, number: int) -> Instance | None:
        """The instance with this number, if it has not ended."""
        return self._instances.get(number)

    # ---- the scheduler's commands

    def load(self, command: pb.LoadInstance) -> None:
        """Adopt or load an instance, as soon as no other session has instances of the model."""
        number = command.instance
        if number in self._commands:
            _log.error("the scheduler requested instance %d twice; ignored", number)
            return
        self._commands[number] = command
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
        """Give an instance up; keep: another scheduler will ask for it."""
        instance = self._instances.get(number)
        if instance is None:
            self._forget(number)
            self._report_unloaded(number)
        else:
            instance.stop(keep=keep and self._shared.kept.keep_s > 0)

    def on_granted(self, number: int) -> None:
        """No other session has instances of this one's model."""
        command = self._commands.get(number)
        if command is None:
            return  # it was unloaded meanwhile
        directories = self._shared.directories
        if directories is not None and directories.needs_preparation(command):
            self._run(self._prepare(directories, command))
        else:
            self._begin(command)

    async def _prepare(self, directories: ModelDirectories, command: pb.LoadInstance) -> None:
        """Have the model's files on this host before the instance is adopted or loaded."""
        try:
            prepared = await directories.prepare(command)
        except NereidError as error:
            if self._is_wanted(command):
                self._report_failed(command.instance, error_status_of(error))
                self._forget(command.instance)
            return
        if self._is_wanted(command):
            self._prepared[command.instance] = prepared
            self._begin(command)
        else:
            prepared.release()

    def _begin(self, command: pb.LoadInstance) -> None:
        content = InstanceContent.of_command(command)
        kept = self._shared.kept
        obsolete, instance = kept.take_obsolete(content), kept.take(content)
        for each in kept.take_excess(command.kept_bytes):
            _log.info(
                "unloading kept instance %s: instance %s needs its memory",
                each.spec.name,
                command.instance_name,
            )
            obsolete.append(each)
        if instance is None and not obsolete:
            self._load(command)
        else:
            self._run(self._adopt_or_load(command, content, instance, obsolete))

    # ---- the session's end

    def stop_all(self) -> None:
        """Stop all after their current batches."""
        self._keep_former()
        self._forget_waiting()
        for instance in self:
            instance.stop()

    def abandon_all(self) -> None:
        """The scheduler is lost: instances finish what they execute, and are kept."""
        shared = self._shared
        shared.begun.session_ending(self)
        shared.claims.end_waiting(self)
        self._keep_former()
        self._forget_waiting()
        keep = shared.kept.keep_s > 0
        stopped = list(self._instances.items())
        for _, instance in stopped:
            instance.stop(abandon=True, keep=keep)
        for number, instance in stopped:
            # One that is loading goes on with that, and does nothing else.
            if keep and not instance.loaded:
                self._on_kept(number, instance)

    def report_end(self) -> None:
        """Most instances have finished since abandon_all(): others may adopt them now."""
        self._shared.carry_out(self._shared.begun.session_ended(self))

    def expire(self) -> None:
        """Some time after abandon_all(): do not wait for what its instances still execute."""
        for lender in self._lenders:
            lender.discard_lent()
        self._shared.carry_out(self._shared.begun.grant(self._shared.claims.expire(self)))

    # ---- begun requests

    def on_hello(self, hello: pb.Hello) -> None:
        """The executor has sent the scheduler this hello."""
        self._shared.begun.session_joined(self, hello.begun_requests)

    def on_commanded(self) -> None:
        """The scheduler knows its models, and asks for what it wants of those kept."""
        self._shared.kept.restart_timer()

    def on_disconnected(self) -> None:
        """The stream has ended, or the scheduler was not there."""
        self._shared.begun.session_disconnected(self)

    def report_begun(self, query: pb.ReportBegun) -> None:
        """The scheduler asks what was begun for another one."""
        begun = self._shared.begun
        self._shared.carry_out(begun.session_asks(self, query.query, query.scheduler))

    def send_begun(self, report: BegunReport) -> None:
        """Name requests that have begun to the scheduler."""
        begun = pb.BegunRequests(ids=report.ids, query=report.query)
        self._send_event(pb.ExecutorEvent(begun_requests=begun))

    # ---- inside

    def _run(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_wanted(self, command: pb.LoadInstance) -> bool:
        return self._commands.get(command.instance) is command

    def _path_of(self, command: pb.LoadInstance) -> Path:
        prepared = self._prepared.get(command.instance)
        if prepared is not None:
            return prepared.path
        return Path(self._shared.settings.local_path(command.version_path))

    async def _adopt_or_load(
        self,
        command: pb.LoadInstance,
        content: InstanceContent,
        instance: Instance | None,
        obsolete: list[Instance],
    ) -> None:
        kept = self._shared.kept
        if instance is not None:
            files = await asyncio.to_thread(read_model_files, self._path_of(command))
            if instance.files is None or not instance.files.same_in(files):
                _log.info("the files of kept instance %s have changed", instance.spec.name)
                self._former[command.instance] = instance
            elif not self._is_wanted(command):
                kept.add(instance, content)
            elif instance.adopt(self._make_tenure(command)):
                _log.info("instance %s is adopted", instance.spec.name)
                self._instances[command.instance] = instance
                self._release_prepared(command.instance)
        await kept.unload(obsolete, self._shared.context.times.instance_stop_s)
        if not self._is_wanted(command):
            self._keep_former(command.instance)
        elif command.instance not in self._instances:
            self._load(command)

    def _keep_former(self, number: int | None = None) -> None:
        """Keep the former instance of one that nobody wants any more; None: all of them."""
        for each in [number] if number is not None else list(self._former):
            instance = self._former.pop(each, None)
            if instance is not None:
                content = InstanceContent.of_command(self._commands[each])
                self._shared.kept.add(instance, content)

    def _on_loaded(self, number: int) -> None:
        former = self._former.pop(number, None)
        if former is not None:
            limit_s = self._shared.context.times.instance_stop_s
            self._run(self._shared.kept.unload([former], limit_s))
        self._on_objects_changed()

    def _adopt_former(self, number: int, error: ErrorStatus) -> bool:
        """Whether the former instance serves: what has replaced its files cannot be loaded."""
        former = self._former.pop(number, None)
        if former is None or not former.adopt(self._make_tenure(self._commands[number])):
            return False
        _log.warning(
            "instance %s goes on with the files that it was loaded from, since the changed ones"
            " cannot be loaded: %s",
            former.spec.name,
            error.message,
        )
        self._instances[number] = former
        self._release_prepared(number)
        return True

    def _load(self, command: pb.LoadInstance) -> None:
        shared = self._shared
        spec = InstanceSpec(
            config=command.config,
            version=command.version,
            version_path=self._path_of(command),
            name=command.instance_name,
            gpu=command.device_id if command.kind == pb.Device.GPU else None,
            settings=dict(command.backend_settings),
            threads=threads_per_instance(shared.cores, command.config),
        )
        instance = shared.make_instance(spec, shared.context, self._make_tenure(command))
        prepared = self._prepared.pop(command.instance, None)
        if prepared is not None:
            shared.prepared[instance] = prepared
        self._instances[command.instance] = instance
        instance.start()

    def _make_tenure(self, command: pb.LoadInstance) -> Tenure:
        number = command.instance
        tensors = self._shared.context.shared_tensors
        lender: OutputLender | None = None
        if tensors.domain == command.shm_namespace != "":
            lender = OutputLender(tensors)
            self._lenders.add(lender)
        callbacks = InstanceCallbacks(
            on_loaded=lambda: self._run_on_loop(lambda: self._on_loaded(number)),
            on_ended=lambda instance, error: self._run_on_loop(
                lambda: self._on_ended(number, instance, error)
            ),
            on_kept=lambda instance: self._run_on_loop(lambda: self._on_kept(number, instance)),
            on_model_lost=lambda stream, last_batch, error: self._run_on_loop(
                lambda: self._on_model_lost(number, stream, last_batch, error)
            ),
        )
        return Tenure(number, self._endpoint, callbacks, self._mesh, lender)

    def _run_on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("an instance outlived the event loop")

    def _on_model_lost(
        self, number: int, stream: int, last_batch: int, error_status: ErrorStatus
    ) -> None:
        lost = pb.InstanceLost(instance=number, stream=stream, begun=last_batch)
        write_error(error_status, lost.error)
        self._send_event(pb.ExecutorEvent(instance_lost=lost))

    def _on_kept(self, number: int, instance: Instance) -> None:
        if self._instances.get(number) is instance:
            content = InstanceContent.of_command(self._commands[number])
            self._shared.kept.add(instance, content)
            self._report_unloaded(number)
            self._forget(number)

    def _on_ended(self, number: int, instance: Instance, error: ErrorStatus | None) -> None:
        # Reference cycles of the model would otherwise stay among the frozen objects.
        self._on_objects_changed()
        shared = self._shared
        shared.ended_batches[instance.version] += instance.batches
        shared.kept.instance_ended(instance)
        prepared = shared.prepared.pop(instance, None)
        if self._instances.get(number) is not instance:
            if prepared is not None:
                prepared.release()
            return
        if prepared is not None:
            # Until it is known whether the instance is loaded again.
            self._prepared[number] = prepared
        if error is None:
            self._report_unloaded(number)
        elif not instance.loaded and self._frees_memory(number) and _is_about_memory(error):
            _log.warning("kept instances are unloaded, to free memory for %s", instance.spec.name)
            del self._instances[number]
            self._keep_former(number)
            command = self._commands[number]
            content = InstanceContent.of_command(command)
            self._run(self._adopt_or_load(command, content, None, shared.kept.take_all()))
            return
        elif not instance.loaded and self._adopt_former(number, error):
            return
        else:
            self._report_failed(number, error)
        self._forget(number)

    def _frees_memory(self, number: int) -> bool:
        return number in self._former or len(self._shared.kept) > 0

    def _report_failed(self, number: int, error: ErrorStatus) -> None:
        event = pb.ExecutorEvent()
        event.instance_failed.instance = number
        write_error(error, event.instance_failed.error)
        self._send_event(event)

    def _report_unloaded(self, number: int) -> None:
        unloaded = pb.InstanceUnloaded(instance=number)
        self._send_event(pb.ExecutorEvent(instance_unloaded=unloaded))

    def _forget_waiting(self) -> None:
        for number in [each for each in self._commands if each not in self._instances]:
            self._forget(number)

    def _release_prepared(self, number: int) -> None:
        prepared = self._prepared.pop(number, None)
        if prepared is not None:
            prepared.release()

    def _forget(self, number: int) -> None:
        self._release_prepared(number)
        self._keep_former(number)
        self._instances.pop(number, None)
        command = self._commands.pop(number, None)
        if not self._commands:
            self.none_left.set()
        if command is not None:
            shared = self._shared
            grants = shared.claims.release(model_of(command), self, number)
            shared.carry_out(shared.begun.grant(grants))


def _is_about_memory(error_status: ErrorStatus) -> bool:
    message = error_status.message.lower()
    return any(word in message for word in _MEMORY_WORDS)
