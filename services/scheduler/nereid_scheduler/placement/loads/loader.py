"""Loads and unloads of model versions on executors, which join and leave."""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Final

from nereid.config.recovery import DEFAULT_TIMES
from nereid.core.errors import NereidError, Unavailable
from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.placement.executors.crash_recovery import CrashRecovery
from nereid_scheduler.placement.executors.ended_executors import EndedExecutors
from nereid_scheduler.placement.loads import instance_update
from nereid_scheduler.placement.loads.instance_streams import InstanceStreams
from nereid_scheduler.placement.loads.instance_table import InstanceTable
from nereid_scheduler.placement.loads.version_lives import VersionLives
from nereid_scheduler.placement.loads.version_loads import VersionLoads
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.placement.models.config_completion import needs_description
from nereid_scheduler.versions.reruns.first_runs import FirstRuns
from nereid_scheduler.versions.waits.nested_calls import NestedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from nereid.config.recovery import RecoveryTimes
    from nereid.model_config import ModelConfig
    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.loads.load_rules import LoadRules
    from nereid_scheduler.placement.models.catalogue import ServedVersion
    from nereid_scheduler.placement.models.ensemble_lifecycle import Ensembles
    from nereid_scheduler.versions.model_version import ModelVersion

_log = logging.getLogger(__name__)

_UNLOADED: Final = "the model was unloaded"
_MOVED: Final = "another scheduler has the model now"


class Loader:
    """The versions to serve, and the executors that have joined."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        rules: LoadRules,
        on_change: Callable[[str], None],
        catalogue: Catalogue | None = None,
        first_commands: Callable[[], Iterable[pb.ExecutorCommand]] = tuple,
        on_executors: Callable[[], None] = lambda: None,
        *,
        on_handed_over: Callable[[ServedVersion, ModelVersion], None] = lambda *_: None,
        times: RecoveryTimes = DEFAULT_TIMES,
    ) -> None:
        self._on_handed_over = on_handed_over
        self._on_executors = on_executors
        self._rules = rules
        self.record_event = rules.record_event
        self._on_change = on_change
        self._sessions: dict[str, Session] = {}
        self.ended_executors = EndedExecutors()
        self._first_commands = first_commands
        # Numbers start at random, so that no instance from before a restart has the number of a new
        # one.
        numbers = count(int.from_bytes(os.urandom(5), "little") << 20 | 1)
        self.instances = InstanceTable(rules, numbers)
        self.crash_recovery = CrashRecovery(self.instances.placed)
        self._instance_updates = instance_update.InstanceUpdates(self.instances)
        self._lives = VersionLives(
            catalogue or Catalogue(),
            on_change,
            lambda served: instance_update.is_updating(self.sessions, served),
            rules.record_event,
        )
        self.waiters = self._lives.waiters
        self.nested_calls = NestedCalls(self.instances.placed)
        self.first_runs = FirstRuns(times.start_wait_s, times.takeover_reports_s)
        self.loads = VersionLoads(
            rules, self._lives, self.instances, self._sessions, numbers, self.nested_calls
        )
        self.streams = InstanceStreams(
            self.instances,
            self._lives,
            self.crash_recovery,
            self._instance_updates,
            rules.record_event,
        )

    @property
    def versions(self) -> Collection[ServedVersion]:
        """All versions that executors have loaded, or have to load."""
        return self._lives.versions.keys()

    def load(self, served: ServedVersion) -> None:
        """Load a version on every executor, including executors that join later."""
        self._lives.add(served)
        try:
            self._rules.check_draft(served.draft)
        except NereidError as error:
            self._lives.refuse(served, error)
            return
        if is_ensemble(served.draft):
            self.loads.create_runtime(served, None)
            self._lives.ensembles.add_ensemble(served)
            return
        if not needs_description(served.draft, self._rules.completion):
            self.loads.create_runtime(served, None)
        self.loads.load_on_all(served)

    def update_instances(self, served: ServedVersion, config: ModelConfig) -> None:
        """Load and unload instances to fit other groups; raise NereidError before any change."""
        assert served.runtime is not None, "updated before it was loaded"
        hosts = [session for session in self._sessions.values() if served in session.hosted]
        plans = [(session, self.loads.slots(config, session)) for session in hosts]
        served.runtime.set_config(config)
        served.shown = None
        for session, slots in plans:
            self.loads.set_shown_config(served, session)
            self._instance_updates.begin_update(served, session, slots)

    def instance_update_error(self, served: ServedVersion) -> str:
        """Return why an instance of an update could not be loaded; empty if none has failed."""
        return instance_update.update_error(self.sessions, served)

    def unload(self, served: ServedVersion) -> Coroutine[None, None, None]:
        """Refuse new requests; return a coroutine that unloads the version after the last one."""
        self._lives.apply_event(served, served.life.begin_unload)
        return self._unload_when_idle(served)

    def load_on(self, served: ServedVersion, hosts: frozenset[str]) -> None:
        """Load a version on other executors, since those that hosted it have left."""
        served.hosts = hosts
        self.loads.load_on_all(served)

    def notify_change(self) -> None:
        """Report that other models should be loaded, although no version's state has changed."""
        self._on_change("")

    def hand_over(self, served: ServedVersion, limit_s: float) -> Coroutine[None, None, None]:
        """Do as unload() does, but give the version to another scheduler.

        Waiting requests return to their gateways, and executors keep the model loaded.
        """
        self._lives.apply_event(served, served.life.begin_unload)
        return self._hand_over_when_idle(served, limit_s)

    async def _hand_over_when_idle(self, served: ServedVersion, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._lives.ensembles.drain_users(served.name)
                runtime = served.runtime
                if runtime is not None:
                    runtime.return_queued()
                    sequences = runtime.config.sequences
                    if sequences is not None and sequences.iterative:
                        # An instance is idle between two iterations of a request, so wait for the
                        # requests first.
                        await runtime.idle()
                    for placed in self.instances.instances_of(served):
                        self.instances.unload_when_idle(placed, _MOVED, keep=True)
                    await runtime.idle()
        except TimeoutError:
            _log.warning("requests of %s are pending after %g s; they fail", served, limit_s)
        await self._end_unload(served, keep=True)

    async def _unload_when_idle(self, served: ServedVersion) -> None:
        await self._lives.ensembles.drain_users(served.name)
        if served.runtime is not None:
            await served.runtime.idle()
        await self._end_unload(served)

    async def _end_unload(self, served: ServedVersion, *, keep: bool = False) -> None:
        self._remove_version(served, keep=keep)
        await self.instances.ended(served)
        served.override_directory = None
        self._lives.apply_event(served, served.life.end_unload)

    def stop(self) -> None:
        """Let no event change a version's state from now on, since the scheduler ends."""
        self._lives.stop()

    def unload_now(self, served: ServedVersion) -> None:
        """Unload a version and fail its requests. The model may take longer to finalize."""
        self._remove_version(served)
        served.override_directory = None
        self._lives.apply_event(served, served.life.end_unload)

    def _remove_version(self, served: ServedVersion, *, keep: bool = False) -> None:
        self._lives.remove(served)
        self.loads.descriptions.drop_version(served)
        self.instances.unload_version(served, _MOVED if keep else _UNLOADED, keep=keep)
        for session in self._sessions.values():
            session.hosted.pop(served, None)
        runtime, served.runtime = served.runtime, None
        if runtime is not None:
            runtime.fail_all(Unavailable(f"model {served} was unloaded", accepted=True))
            runtime.close()
            if keep:
                self._on_handed_over(served, runtime)

    @property
    def ensembles(self) -> Ensembles:
        """Ensembles in service."""
        return self._lives.ensembles

    @property
    def sessions(self) -> Collection[Session]:
        """Executors that have joined."""
        return self._sessions.values()

    def executor_joined(self, session: Session) -> bool:
        """Load all versions on an executor that joins; return False if its name is in use."""
        old = self._sessions.get(session.name)
        if old is not None and not old.is_same_process(session.process):
            return False
        # Call this first: the new session must be asked all that the old session was asked.
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
        self.record_event("executor joined", session.name, backends)
        for served in list(self._lives.versions):
            self.loads.load_on(served, session)
        self._on_executors()
        return True

    def begin_takeover(self, lost: Iterable[str]) -> None:
        """Ask executors which requests they have begun for these schedulers, which were lost."""
        names = list(lost)
        self.record_event("scheduler takeover", ", ".join(names))
        self.first_runs.begin_takeover(names)

    def executor_leaving(self, session: Session) -> None:
        """Give an executor no new batches: it is leaving, and only finishes those it has."""
        _log.info("executor '%s' is leaving", session.name)
        session.leaving = True
        self.record_event("executor left", session.name, _place_of(session))
        self._remove_session(session)
        for served, hosted in session.hosted.items():
            hosted.awaited.clear()
            for number, instance in list(hosted.instances.items()):
                if served.pool is not None:
                    served.pool.roster.retire(instance)
                if instance.has_states:
                    # Sent once other instances have the sequences' states. The executor waits for
                    # it.
                    cause = f"executor '{session.name}' left"
                    self.instances.unload_when_idle(self.instances.placed[number], cause)
        self._lives.forget_reports_of(session)
        self._on_executors()

    def executor_left(self, session: Session) -> None:
        """Remove an executor whose Join stream has ended. If leaving, it may finish its batches."""
        if not (session.leaving or self._lives.stopped):
            _log.warning("executor '%s' was lost", session.name)
            self.record_event("executor lost", session.name, _place_of(session))
        self._rules.segment_owners.remove_owner(session)
        self._remove_session(session)
        self.ended_executors.add(session)
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
        self._lives.forget_reports_of(session)
        for served in self.loads.descriptions.drop_executor(session):
            self.loads.load_on_all(served)
        self._on_executors()

    def _remove_session(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]


def _place_of(session: Session) -> str:
    host_name = session.hello.host_name
    return f"on {host_name}" if host_name else ""
