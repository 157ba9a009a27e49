"""Loads model versions on every executor, and unloads them.

Events of executors in; commands to executors and the versions' states out. All of it is sync code
of one event loop, except for waiting. Which versions to load is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import NereidError, ProtocolError, Unavailable
from nereid.model_config import with_instance_groups
from nereid.rpc import Status
from nereid.services.scheduler.ensembles.ensemble_lifecycle import Ensembles
from nereid.services.scheduler.executors.crash_recovery import CrashRecovery
from nereid.services.scheduler.executors.describe_commands import DescribeCommands
from nereid.services.scheduler.executors.instance_table import InstanceTable
from nereid.services.scheduler.executors.placement import (
    device_of,
    gpu_ids,
    place,
    require_agents,
    require_backend,
)
from nereid.services.scheduler.executors.sessions import HostedVersion
from nereid.services.scheduler.models import instance_update
from nereid.services.scheduler.models.catalogue import Catalogue
from nereid.services.scheduler.models.config_completion import needs_description
from nereid.services.scheduler.models.dependencies import is_ensemble
from nereid.services.scheduler.models.lifecycle import LoadStatus, VersionState, reason_of
from nereid.services.scheduler.models.load_rules import full_config_of
from nereid.services.scheduler.models.load_waiters import LoadWaiters
from nereid.services.scheduler.repository.revision import digest_files, revision_of
from nereid.services.scheduler.requests.first_runs import FirstRuns
from nereid.services.scheduler.requests.nested_calls import NestedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from nereid.config.recovery import RecoveryTimes
    from nereid.core.messages import ErrorStatus
    from nereid.model_config import ModelConfig
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.scheduler.executors.instance import BatchStream
    from nereid.services.scheduler.executors.placement import Slot
    from nereid.services.scheduler.executors.sessions import PlacedInstance, Session
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.models.load_rules import LoadRules

_log = logging.getLogger(__name__)

_UNLOADED: Final = "the model was unloaded"
_MOVED: Final = "another scheduler has the model now"


class Loader:
    """The owner of all versions' lives. on_change: called when a version's state has changed."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        rules: LoadRules,
        on_change: Callable[[], None],
        catalogue: Catalogue | None = None,
        first_commands: Callable[[], Iterable[pb.ExecutorCommand]] = tuple,
        on_executors: Callable[[], None] = lambda: None,
        *,
        times: RecoveryTimes = DEFAULT_TIMES,
    ) -> None:
        """catalogue: where ensembles find the models of their steps. first_commands: for an
        executor that joins. on_executors: called when one has joined, or has left.
        """
        self._on_executors = on_executors
        self._rules = rules
        self._on_change = on_change
        # Those in service or being loaded, and those that still finish requests they accepted.
        self._versions: dict[ServedVersion, None] = {}
        self._revision_tasks: set[asyncio.Task[None]] = set()
        self._sessions: dict[str, Session] = {}
        self._stopped = False
        self._first_commands = first_commands
        # Random, so that an instance from before a restart of the scheduler matches no new number.
        self._numbers = count(int.from_bytes(os.urandom(5), "little") << 20 | 1)
        self.instances = InstanceTable(rules, self._numbers)
        self.crash_recovery = CrashRecovery(self.instances.placed)
        self._instance_updates = instance_update.InstanceUpdates(self.instances)
        self.waiters = LoadWaiters(self._is_load_finished)
        self._descriptions = DescribeCommands(self._numbers)
        # Versions whose instances are being unloaded, with what the task of that waits for.
        self._ends: dict[ServedVersion, asyncio.Future[None]] = {}
        self.nested_calls = NestedCalls(self.instances.placed)
        self.first_runs = FirstRuns(times.start_wait_s, times.takeover_reports_s)
        self._ensembles = Ensembles(catalogue or Catalogue(), self._apply_event)

    # ---- versions

    @property
    def versions(self) -> Collection[ServedVersion]:
        """All versions that executors have, or are to load."""
        return self._versions.keys()

    def load(self, served: ServedVersion) -> None:
        """Load a version on every executor, those that join later included."""
        self._versions[served] = None
        self._apply_event(served, served.life.await_executor)
        try:
            self._rules.check_draft(served.draft)
        except NereidError as error:
            self._refuse(served, error)
            return
        if is_ensemble(served.draft):
            self._create_runtime(served, None)
            self._ensembles.add_ensemble(served)
            return
        if not needs_description(served.draft, self._rules.completion):
            self._create_runtime(served, None)
        self._load_on_all_executors(served)

    def update_instances(self, served: ServedVersion, config: ModelConfig) -> None:
        """Load and unload instances by this configuration, which differs in nothing else.

        Raises:
            NereidError: no executor can host these instances; nothing has changed then.
        """
        assert served.runtime is not None, "updated before it was loaded"
        hosts = [session for session in self._sessions.values() if served in session.hosted]
        plans = [(session, self._slots(config, session)) for session in hosts]
        served.runtime.config = config
        served.shown = None
        for session, slots in plans:
            self._set_shown_config(served, session)
            self._instance_updates.begin_update(served, session, slots)

    def instance_update_error(self, served: ServedVersion) -> str:
        """Why an instance that an update asked for could not be loaded; empty: all were."""
        return instance_update.update_error(self.sessions, served)

    def unload(self, served: ServedVersion) -> Coroutine[None, None, None]:
        """Have a version accept no more requests; await the rest: its unload after the last one."""
        self._apply_event(served, served.life.begin_unload)
        return self._unload_when_idle(served)

    def load_on(self, served: ServedVersion, hosts: frozenset[str]) -> None:
        """Load a version on other executors than before, which are gone."""
        served.hosts = hosts
        self._load_on_all_executors(served)

    def notify_change(self) -> None:
        """Which models are to be loaded has changed, though no version's state."""
        self._on_change()

    def hand_over(self, served: ServedVersion, limit_s: float) -> Coroutine[None, None, None]:
        """As unload(), but another scheduler takes the version over: requests that wait are
        returned, and executors keep the model loaded. limit_s: for those that are executed already.
        """
        self._apply_event(served, served.life.begin_unload)
        return self._hand_over_when_idle(served, limit_s)

    async def _hand_over_when_idle(self, served: ServedVersion, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._ensembles.drain_users(served.name)
                runtime = served.runtime
                if runtime is not None:
                    runtime.return_queued()
                    sequences = runtime.config.sequences
                    if sequences is not None and sequences.iterative:
                        # Between two iterations of a request its instance is idle.
                        await runtime.idle()
                    for placed in self.instances.instances_of(served):
                        self.instances.unload_when_idle(placed, _MOVED, keep=True)
                    await runtime.idle()
        except TimeoutError:
            _log.warning("requests of %s are pending after %g s; they fail", served, limit_s)
        await self._end_unload(served, keep=True)

    async def _unload_when_idle(self, served: ServedVersion) -> None:
        await self._ensembles.drain_users(served.name)
        if served.runtime is not None:
            await served.runtime.idle()
        await self._end_unload(served)

    async def _end_unload(self, served: ServedVersion, *, keep: bool = False) -> None:
        self._remove_version(served, keep=keep)
        if self.instances.is_ending(served):
            end = self._ends[served] = asyncio.get_running_loop().create_future()
            await end
        served.override_directory = None
        self._apply_event(served, served.life.end_unload)

    def stop(self) -> None:
        """The scheduler ends: executors that leave from now on change no version's state."""
        self._stopped = True

    def unload_now(self, served: ServedVersion) -> None:
        """Unload a version; requests that it still has fail. Finalizers may take longer."""
        self._remove_version(served)
        served.override_directory = None
        self._apply_event(served, served.life.end_unload)

    def _remove_version(self, served: ServedVersion, *, keep: bool = False) -> None:
        self._versions.pop(served, None)
        self._ensembles.remove_ensemble(served)
        self._descriptions.drop_version(served)
        self.instances.unload_version(served, _MOVED if keep else _UNLOADED, keep=keep)
        for session in self._sessions.values():
            session.hosted.pop(served, None)
        runtime, served.runtime = served.runtime, None
        if runtime is not None:
            runtime.fail_all(Unavailable(f"model {served} was unloaded", accepted=True))
            runtime.close()

    def _notify_unloads(self) -> None:
        for served in [each for each in self._ends if not self.instances.is_ending(each)]:
            end = self._ends.pop(served)
            if not end.done():
                end.set_result(None)

    # ---- executors

    @property
    def sessions(self) -> Collection[Session]:
        """The executors that have joined."""
        return self._sessions.values()

    def executor_joined(self, session: Session) -> bool:
        """An executor has joined: load all versions on it. False: another one has its name."""
        old = self._sessions.get(session.name)
        if old is not None and not old.is_same_process(session.process):
            return False
        # First: what the old session was asked for, this one is asked for again.
        self.first_runs.executor_joined(session)
        if old is not None:
            _log.warning("executor '%s' joined again; its old session ends", session.name)
            self.executor_left(old)
            old.stream.finish()
        self._sessions[session.name] = session
        for command in self._first_commands():
            session.send(command)
        self._rules.segment_owners.add_owner(session)
        backends = ", ".join(session.hello.backends)
        _log.info("executor '%s' joined with backends: %s", session.name, backends)
        for served in list(self._versions):
            self._load_on_executor(served, session)
        self._on_executors()
        return True

    def begin_takeover(self, lost: Iterable[str]) -> None:
        """Schedulers of these names were lost, whose models may be loaded here."""
        self.first_runs.begin_takeover(lost)

    def executor_leaving(self, session: Session) -> None:
        """An executor finishes the batches that it has and takes no new ones."""
        _log.info("executor '%s' is leaving", session.name)
        session.leaving = True
        self._remove_session(session)
        for served, hosted in session.hosted.items():
            hosted.awaited.clear()
            for number, instance in list(hosted.instances.items()):
                if served.model_version is not None:
                    served.model_version.retire_instance(instance)
                if instance.has_states:
                    # It waits for this; by then its sequences' states are elsewhere.
                    cause = f"executor '{session.name}' left"
                    self.instances.unload_when_idle(self.instances.placed[number], cause)
        self._forget_reports_of(session)
        self._on_executors()

    def executor_left(self, session: Session) -> None:
        """An executor's control stream has ended. One that was leaving may still finish batches."""
        if not (session.leaving or self._stopped):
            _log.warning("executor '%s' was lost", session.name)
        self._rules.segment_owners.remove_owner(session)
        self._remove_session(session)
        session.gone = True
        self.crash_recovery.on_executor_left(session)
        self.first_runs.executor_left(session)
        self.instances.executor_left(session)
        for hosted in session.hosted.values():
            for instance in list(hosted.instances.values()):
                if not (session.leaving and instance.at_work and instance.stream is not None):
                    self.instances.drop_instance(
                        hosted, instance, f"executor '{session.name}' was lost"
                    )
        self._forget_reports_of(session)
        self._notify_unloads()
        for served in self._descriptions.drop_executor(session):
            self._load_on_all_executors(served)
        self._on_executors()

    def model_described(self, session: Session, message: pb.Described) -> None:
        """An executor has read a model file, or has failed to."""
        served = self._descriptions.end(session, message.command)
        if served is None:
            return
        if message.HasField("error"):
            self._report_failure(
                served, session, reason_of(message.error.code, message.error.message)
            )
        else:
            self._create_runtime(served, message)
        self._load_on_all_executors(served)

    # ---- instances

    def instance_opened(
        self, number: int, stream: BatchStream, process: str = "", crash_stream: int = 0
    ) -> PlacedInstance | None:
        """An instance's stream is open: it is ready for batches. None: no such instance.

        process: its executor's EXECUTOR_KEY; no other process has the instance. crash_stream: see
        Instance.
        """
        placed = self.instances.placed.get(number)
        if placed is None or placed.session.leaving:
            return None
        if placed.session.process and not placed.session.is_same_process(process):
            return None
        instance, served = placed.instance, placed.served
        old = instance.stream
        if old is not None:
            self.instance_closed(placed, old)
            old.finish()
        self.crash_recovery.on_reconnected(placed, crash_stream)
        instance.stream, instance.crash_stream = stream, crash_stream
        assert served.model_version is not None, "placed, but not in service"
        if not placed.slot.passive:
            served.model_version.add_instance(instance)
        hosted = placed.session.hosted[served]
        if hosted.completed or hosted.ready == len(hosted.instances):
            hosted.completed = True
            self._report(served, placed.session, LoadStatus.UP)
        self._instance_updates.on_load_finished(hosted, number)
        self.waiters.notify_all()
        return placed

    def instance_closed(self, placed: PlacedInstance, stream: BatchStream) -> None:
        """An instance's stream broke. It may reconnect while its executor's session lasts."""
        instance, served, session = placed.instance, placed.served, placed.session
        if instance.stream is not stream:
            return
        instance.stream = None
        cause = f"instance '{instance.name}' of executor '{session.name}' was lost"
        self.crash_recovery.on_stream_closed(placed, cause)
        hosted = session.hosted[served]
        if session.leaving or instance.id in hosted.surplus:
            self.instances.remove_instance(hosted, instance)
        elif hosted.completed and not hosted.ready and hosted.instances:
            self._report(served, session, LoadStatus.LOADING)

    def batch_withdrawn(self, session: Session, report: pb.Withdrawn) -> None:
        """An instance has given a batch back that it had not begun."""
        placed = self.instances.placed.get(report.instance)
        if placed is None or placed.session is not session or placed.served.model_version is None:
            return
        try:
            placed.served.model_version.batch_withdrawn(placed.instance, report.batch)
        except ProtocolError as error:
            self.end_stream(placed, error)

    def end_stream(self, placed: PlacedInstance, error: ProtocolError) -> None:
        """An instance broke the protocol: its stream ends, and what it had runs elsewhere. Its
        executor may connect it anew.
        """
        instance, stream = placed.instance, placed.instance.stream
        if stream is None:
            return
        _log.error(
            "instance %s of executor '%s' broke the protocol; its stream ends, and its requests"
            " run elsewhere: %s",
            instance.name,
            placed.session.name,
            error,
        )
        self.instance_closed(placed, stream)
        stream.fail(Status.INTERNAL, str(error))

    def instance_unloaded(self, session: Session, number: int) -> None:
        """An executor has unloaded an instance: its model is finalized, its memory free."""
        self.crash_recovery.on_no_report(session, number)
        self.instances.instance_ended(session, number)
        self._notify_unloads()

    def instance_failed(self, session: Session, number: int, error_status: ErrorStatus) -> None:
        """An instance could not be loaded, or has failed for good."""
        self.instances.instance_ended(session, number)
        self._notify_unloads()
        placed = self.instances.placed.get(number)
        if placed is None or placed.session is not session:
            return
        served, hosted = placed.served, session.hosted[placed.served]
        reason = reason_of(error_status.code, error_status.message)
        _log.warning(
            "instance %s of executor '%s' failed: %s", placed.instance.name, session.name, reason
        )
        self.instances.drop_instance(
            hosted, placed.instance, f"instance '{placed.instance.name}' failed"
        )
        if session.leaving:
            # It finished loading too late and was refused: that is no failure of the model.
            return
        if not hosted.completed:
            # As on Triton, one instance that cannot be loaded fails the load.
            for instance_id in list(hosted.instances):
                cause = f"the load on executor '{session.name}' failed"
                self.instances.unload_instance(self.instances.placed[instance_id], cause)
        self._instance_updates.on_load_finished(hosted, number, reason)
        self.waiters.notify_all()
        if not hosted.ready:
            self._report_failure(served, session, reason)

    # ---- loading

    def _load_on_all_executors(self, served: ServedVersion) -> None:
        for session in list(self._sessions.values()):
            self._load_on_executor(served, session)

    def _load_on_executor(self, served: ServedVersion, session: Session) -> None:
        """Have an executor load its instances, unless it does so already or has failed to."""
        life = served.life
        if life.refused or served in session.hosted or life.failed_on(session):
            return
        if is_ensemble(served.draft):
            return
        if served.hosts is not None and session.name not in served.hosts:
            return
        if served.runtime is not None:
            self._place_instances(served, session)
        elif not self._descriptions.is_pending(served):
            self._request_description(served, session)

    def _request_description(self, served: ServedVersion, session: Session) -> None:
        try:
            require_backend(served.draft.backend, session.hello)
            require_agents(served.draft, session.hello)
        except NereidError as error:
            self._report_failure(served, session, reason_of(error.code, error.message))
            return
        command = self._descriptions.begin(served, session)
        self._report(served, session, LoadStatus.LOADING)
        session.send(command)

    def _create_runtime(self, served: ServedVersion, described: pb.Described | None) -> None:
        """Complete the configuration; from then on the version can queue requests."""
        try:
            served.runtime = self._rules.create_runtime(
                served, described, self._ensembles.find_model, self.nested_calls
            )
        except NereidError as error:
            self._refuse(served, error)

    def _refuse(self, served: ServedVersion, error: NereidError) -> None:
        reason = reason_of(error.code, error.message)
        self._apply_event(served, partial(served.life.refuse, reason))

    def _place_instances(self, served: ServedVersion, session: Session) -> None:
        try:
            slots = self._slots(full_config_of(served), session)
        except NereidError as error:
            self._report_failure(served, session, reason_of(error.code, error.message))
            return
        self._set_shown_config(served, session)
        hosted = session.hosted[served] = HostedVersion()
        self._report(served, session, LoadStatus.LOADING)
        if self._rules.cache is None:
            self.instances.load_instances(served, session, slots)
        else:
            task = asyncio.ensure_future(self._load_with_revision(served, session, hosted, slots))
            self._revision_tasks.add(task)
            task.add_done_callback(self._revision_tasks.discard)

    def _slots(self, config: ModelConfig, session: Session) -> list[Slot]:
        """The instances for an executor. Raises NereidError: it cannot host them."""
        slots = place(config, session.hello)
        if self._rules.rate_limiter is not None:
            resources = self._rules.rate_limiter.resources
            for slot in slots:
                resources.require(slot.rate_limit.resources, device_of(slot, session.hello))
        return slots

    async def _load_with_revision(
        self, served: ServedVersion, session: Session, hosted: HostedVersion, slots: list[Slot]
    ) -> None:
        """Digest the files before they are loaded: an executor may join long after the scan.

        If they change in between, responses are cached under a revision that is never looked up.
        """
        # Executors load just those of an object store that were listed.
        stored = served.stored_digest
        digest = stored or await asyncio.to_thread(digest_files, served.path)
        runtime = served.runtime
        ended = session.leaving or session.gone
        if session.hosted.get(served) is hosted and not ended and runtime is not None:
            # Models of one name in two namespaces must not share responses.
            revision = revision_of(runtime.config.proto, digest + served.namespace.encode())
            runtime.set_revision(revision)
            self.instances.load_instances(served, session, slots, revision)

    def _set_shown_config(self, served: ServedVersion, session: Session) -> None:
        """Clients see the instance groups of the first executor."""
        if served.shown is None:
            proto = full_config_of(served).proto
            served.shown = with_instance_groups(proto, gpu_ids=gpu_ids(session.hello))

    # ---- states

    def _remove_session(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    def _forget_reports_of(self, session: Session) -> None:
        for served in list(self._versions):
            self._apply_event(served, partial(served.life.forget_executor, session))

    def _report(self, served: ServedVersion, session: Session, standing: LoadStatus) -> None:
        self._apply_event(served, partial(served.life.report, session, standing))

    def _report_failure(self, served: ServedVersion, session: Session, reason: str) -> None:
        self._apply_event(served, partial(served.life.report, session, LoadStatus.FAILED, reason))

    def _apply_event(self, served: ServedVersion, event: Callable[[], None]) -> None:
        """Apply an event to a version's life, and act on the change of its state."""
        if self._stopped:
            return
        life = served.life
        before = (life.state, life.reason)
        event()
        served.record_load_times(time.monotonic())
        self.waiters.notify_all()
        if (life.state, life.reason) == before:
            return
        state = f"{life.state.value}: {life.reason}" if life.reason else life.state.value
        failed = life.state is VersionState.UNAVAILABLE and not life.unloaded
        _log.log(logging.ERROR if failed else logging.INFO, "model %s is %s", served, state)
        if failed and served.runtime is not None:
            served.runtime.fail_all(
                Unavailable(f"model {served} failed: {life.reason}", accepted=True)
            )
        self._ensembles.on_model_changed(served.name)
        self._on_change()

    def _is_load_finished(self, served: ServedVersion) -> bool:
        return served.life.load_finished and not instance_update.is_updating(self.sessions, served)
