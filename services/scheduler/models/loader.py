"""Brings model versions into service, on every executor, and takes them out again.

Events of executors in, commands to executors and the versions' states out; all in sync code of one
event loop, but for the waiting. Does not decide which versions there shall be.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from nereid.core.errors import NereidError, Unavailable
from nereid.model_config import with_instance_groups
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.caching.response_cache import place_of
from nereid.services.scheduler.ensembles.ensemble_lifecycle import Ensembles
from nereid.services.scheduler.executors.crash_recovery import Fates
from nereid.services.scheduler.executors.instance_table import Instances
from nereid.services.scheduler.executors.placement import gpu_ids, place, require_backend
from nereid.services.scheduler.executors.sessions import Part
from nereid.services.scheduler.models import resizing
from nereid.services.scheduler.models.catalogue import Catalogue
from nereid.services.scheduler.models.config_completion import needs_description
from nereid.services.scheduler.models.dependencies import is_ensemble
from nereid.services.scheduler.models.lifecycle import Standing, VersionState, reason_of
from nereid.services.scheduler.models.load_outcomes import Verdicts
from nereid.services.scheduler.models.load_rules import config_of
from nereid.services.scheduler.repository.revision import files_of, revision_of
from nereid.services.scheduler.requests.nested_calls import Lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from nereid.core.messages import ErrorStatus
    from nereid.model_config import ModelConfig
    from nereid.services.scheduler.executors.instance import BatchStream
    from nereid.services.scheduler.executors.placement import Slot
    from nereid.services.scheduler.executors.sessions import Placed, Session
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.models.load_rules import LoadRules

_log = logging.getLogger(__name__)


class Loader:
    """The owner of all versions' lives. on_change: some version's state is another now."""

    def __init__(
        self, rules: LoadRules, on_change: Callable[[], None], catalogue: Catalogue | None = None
    ) -> None:
        """catalogue: where ensembles find the models that they consist of."""
        self._rules = rules
        self._on_change = on_change
        # Those that are or shall be in service, and those that still finish what they accepted.
        self._versions: dict[ServedVersion, None] = {}
        self._readings: set[asyncio.Task[None]] = set()
        self._sessions: dict[str, Session] = {}
        self._stopped = False
        # What an executor that joins is told first.
        self.greeting: Callable[[], Iterable[pb.ExecutorCommand]] = tuple
        # An executor's thread from before a restart of the scheduler must not match by chance.
        self._numbers = count(int.from_bytes(os.urandom(5), "little") << 20 | 1)
        self.instances = Instances(rules, self._numbers)
        self.fates = Fates(self.instances.placed)
        self._resizing = resizing.Resizing(self.instances)
        self.verdicts = Verdicts(self._is_decided)
        self._describing: dict[int, tuple[ServedVersion, Session]] = {}
        self.lineage = Lineage(self.instances.placed)
        self._ensembles = Ensembles(self, catalogue or Catalogue(), self.lineage)

    # ---- versions

    @property
    def versions(self) -> Collection[ServedVersion]:
        """All versions that executors have, or shall have."""
        return self._versions.keys()

    def load(self, served: ServedVersion) -> None:
        """Bring a version into service, on every executor that is here and that comes."""
        self._versions[served] = None
        self.settle(served, served.life.await_executor)
        if is_ensemble(served.draft):
            self._complete(served, None)
            self._ensembles.add(served)
            return
        if not needs_description(served.draft, self._rules.completion):
            self._complete(served, None)
        self._consider_all(served)

    def resize(self, served: ServedVersion, config: ModelConfig) -> None:
        """Have as many instances as this configuration says, which differs in nothing else.

        Raises:
            NereidError: no executor can host that; nothing has changed then.
        """
        assert served.runtime is not None, "resized before it was loaded"
        hosts = [session for session in self._sessions.values() if served in session.parts]
        plans = [(session, place(config, session.hello)) for session in hosts]
        served.runtime.config = config
        served.shown = None
        for session, slots in plans:
            self._show(served, session)
            self._resizing.begin(served, session, slots)

    def resize_error(self, served: ServedVersion) -> str:
        """Why an instance that a resize asked for did not come; empty: all came."""
        return resizing.error_status_of(self.sessions, served)

    def retire(self, served: ServedVersion) -> Coroutine[None, None, None]:
        """Have a version take nothing new from now on; await the rest: all it has is answered."""
        self.settle(served, served.life.begin_unload)
        return self._finish(served)

    async def _finish(self, served: ServedVersion) -> None:
        await self._ensembles.drained(served.name)
        if served.runtime is not None:
            await served.runtime.idle()
        self.discard(served)

    def stop(self) -> None:
        """Everything ends: that executors go now is no news, and changes no version's state."""
        self._stopped = True

    def discard(self, served: ServedVersion) -> None:
        """Let go of a version that nobody waits for."""
        self._versions.pop(served, None)
        self._ensembles.remove(served)
        for command, (described, _) in list(self._describing.items()):
            if described is served:
                del self._describing[command]
        self.instances.unload_all(served, "the model was unloaded")
        for session in self._sessions.values():
            session.parts.pop(served, None)
        runtime, served.runtime = served.runtime, None
        if runtime is not None:
            runtime.fail_all(Unavailable(f"model {served} was unloaded", accepted=True))
            runtime.close()
        served.keeper = None
        self.settle(served, served.life.end_unload)

    # ---- executors

    @property
    def sessions(self) -> Collection[Session]:
        """The executors that have joined."""
        return self._sessions.values()

    def joined(self, session: Session) -> None:
        """An executor is here: it shall have all models."""
        old = self._sessions.pop(session.name, None)
        if old is not None:
            _log.warning("executor '%s' joined again; its old session ends", session.name)
            self.left(old)
            old.stream.finish()
        self._sessions[session.name] = session
        for command in self.greeting():
            session.send(command)
        self._rules.shared_tensors.joined(session)
        backends = ", ".join(session.hello.backends)
        _log.info("executor '%s' joined with backends: %s", session.name, backends)
        for served in list(self._versions):
            self._consider(served, session)

    def leaving(self, session: Session) -> None:
        """It finishes what it has and wants nothing new."""
        _log.info("executor '%s' is leaving", session.name)
        session.leaving = True
        self._forget(session)
        for served, part in session.parts.items():
            for instance in part.instances.values():
                if served.runtime is not None:
                    served.runtime.retire_instance(instance)
            part.awaited.clear()
        self._forget_standing(session)

    def left(self, session: Session) -> None:
        """Its control stream is at its end; so is the executor, unless it was leaving in peace."""
        if not (session.leaving or self._stopped):
            _log.warning("executor '%s' is gone", session.name)
        self._rules.shared_tensors.left(session)
        self._forget(session)
        session.gone = True
        self.fates.left(session)
        for part in session.parts.values():
            for instance in list(part.instances.values()):
                if not (session.leaving and instance.at_work and instance.stream is not None):
                    self.instances.drop(part, instance, f"executor '{session.name}' was lost")
        self._forget_standing(session)
        for command, (served, describer) in list(self._describing.items()):
            if describer is session:
                del self._describing[command]
                self._consider_all(served)

    def described(self, session: Session, message: pb.Described) -> None:
        """An executor has read a model file, or could not."""
        served, describer = self._describing.pop(message.command, (None, None))
        if served is None or describer is not session:
            _log.warning("executor '%s' described what was not asked for", session.name)
            return
        if message.HasField("error"):
            self._fail(served, session, reason_of(message.error.code, message.error.message))
        else:
            self._complete(served, message)
        self._consider_all(served)

    # ---- instances

    def instance_opened(self, number: int, stream: BatchStream) -> Placed | None:
        """An instance's stream is open: it is ready. None: no such instance."""
        placed = self.instances.placed.get(number)
        if placed is None or placed.session.leaving:
            return None
        instance, served = placed.instance, placed.served
        old = instance.stream
        if old is not None:
            self.instance_closed(placed, old)
            old.finish()
        self.fates.told(placed.session, number)
        instance.stream = stream
        assert served.runtime is not None, "placed, but not in service"
        served.runtime.add_instance(instance)
        part = placed.session.parts[served]
        if part.completed or part.ready == len(part.instances):
            part.completed = True
            self._report(served, placed.session, Standing.UP)
        self._resizing.arrived(part, number)
        self.verdicts.reconsider()
        return placed

    def instance_closed(self, placed: Placed, stream: BatchStream) -> None:
        """An instance's stream broke. It may dial again for as long as its executor is joined."""
        instance, served, session = placed.instance, placed.served, placed.session
        if instance.stream is not stream:
            return
        instance.stream = None
        cause = f"instance '{instance.name}' of executor '{session.name}' was lost"
        self.fates.closed(placed, cause)
        part = session.parts[served]
        if session.leaving or instance.id in part.surplus:
            self.instances.forget(part, instance)
        elif part.completed and not part.ready and part.instances:
            self._report(served, session, Standing.LOADING)

    def instance_failed(self, session: Session, number: int, error_status: ErrorStatus) -> None:
        """An instance could not be loaded, or ended for good."""
        placed = self.instances.placed.get(number)
        if placed is None or placed.session is not session:
            return
        served, part = placed.served, session.parts[placed.served]
        reason = reason_of(error_status.code, error_status.message)
        _log.warning("executor '%s' has no %s: %s", session.name, placed.instance.name, reason)
        self.instances.drop(part, placed.instance, f"instance '{placed.instance.name}' failed")
        if session.leaving:
            # It was loading and found itself refused: that says nothing of the model.
            return
        if not part.completed:
            # As on Triton, one instance that cannot be loaded fails the load.
            for instance_id in list(part.instances):
                cause = f"the load on executor '{session.name}' failed"
                self.instances.unload(self.instances.placed[instance_id], cause)
        self._resizing.arrived(part, number, reason)
        self.verdicts.reconsider()
        if not part.ready:
            self._fail(served, session, reason)

    # ---- loading

    def _consider_all(self, served: ServedVersion) -> None:
        for session in list(self._sessions.values()):
            self._consider(served, session)

    def _consider(self, served: ServedVersion, session: Session) -> None:
        """Have an executor do its share, unless it is doing so or has failed to."""
        life = served.life
        if life.refused or served in session.parts or life.failed_on(session):
            return
        if is_ensemble(served.draft):
            return
        if served.runtime is not None:
            self._place(served, session)
        elif all(waiting is not served for waiting, _ in self._describing.values()):
            self._describe(served, session)

    def _describe(self, served: ServedVersion, session: Session) -> None:
        try:
            require_backend(served.draft.backend, session.hello)
        except NereidError as error:
            self._fail(served, session, reason_of(error.code, error.message))
            return
        command = next(self._numbers)
        self._describing[command] = (served, session)
        self._report(served, session, Standing.LOADING)
        describe = pb.Describe(command=command, config=served.draft, version_path=served.path)
        session.send(pb.ExecutorCommand(describe=describe))

    def _complete(self, served: ServedVersion, described: pb.Described | None) -> None:
        """Make the configuration whole and the version ready to queue requests."""
        try:
            served.runtime = self._rules.make_runtime(served, described)
        except NereidError as error:
            reason = reason_of(error.code, error.message)
            self.settle(served, partial(served.life.refuse, reason))

    def _place(self, served: ServedVersion, session: Session) -> None:
        try:
            slots = place(config_of(served), session.hello)
        except NereidError as error:
            self._fail(served, session, reason_of(error.code, error.message))
            return
        self._show(served, session)
        session.parts[served] = Part()
        self._report(served, session, Standing.LOADING)
        assert served.runtime is not None, "placed before its configuration was whole"
        if self._rules.cache is None:
            self.instances.add(served, session, slots)
        else:
            reading = asyncio.ensure_future(self._add_revised(served, session, slots))
            self._readings.add(reading)
            reading.add_done_callback(self._readings.discard)

    async def _add_revised(
        self, served: ServedVersion, session: Session, slots: list[Slot]
    ) -> None:
        """Note what the files are before they are loaded: an executor may come long after the scan.

        If they change meanwhile, the answers belong to no revision that will be looked for again.
        """
        part = session.parts[served]
        files = await asyncio.to_thread(files_of, served.path)
        runtime = served.runtime
        if session.parts.get(served) is part and not session.leaving and runtime is not None:
            runtime.revision = revision = revision_of(runtime.config.proto, files)
            if runtime.cache is not None:
                runtime.cache.revise(place_of(served.name, served.number, revision))
            self.instances.add(served, session, slots, revision)

    def _show(self, served: ServedVersion, session: Session) -> None:
        """What clients are told of the instance groups is the first executor's."""
        if served.shown is None:
            proto = config_of(served).proto
            served.shown = with_instance_groups(proto, gpu_ids=gpu_ids(session.hello))

    # ---- book-keeping

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    def _forget_standing(self, session: Session) -> None:
        for served in list(self._versions):
            self.settle(served, partial(served.life.forget, session))

    def _report(self, served: ServedVersion, session: Session, standing: Standing) -> None:
        self.settle(served, partial(served.life.report, session, standing))

    def _fail(self, served: ServedVersion, session: Session, reason: str) -> None:
        self.settle(served, partial(served.life.report, session, Standing.FAILED, reason))

    def settle(self, served: ServedVersion, event: Callable[[], None]) -> None:
        """Let an event happen to a version's life, and act on what became of it."""
        if self._stopped:
            return
        life = served.life
        before = (life.state, life.reason)
        event()
        served.note_times(time.monotonic())
        self.verdicts.reconsider()
        if (life.state, life.reason) == before:
            return
        told = f"{life.state.value}: {life.reason}" if life.reason else life.state.value
        failed = life.state is VersionState.UNAVAILABLE and not life.unloaded
        _log.log(logging.ERROR if failed else logging.INFO, "model %s is %s", served, told)
        if failed and served.runtime is not None:
            served.runtime.fail_all(
                Unavailable(f"model {served} failed: {life.reason}", accepted=True)
            )
        self._ensembles.changed(served.name)
        self._on_change()

    def _is_decided(self, served: ServedVersion) -> bool:
        return served.life.decided and not resizing.is_under_way(self.sessions, served)
