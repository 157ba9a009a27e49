"""Brings model versions into service: described, completed, placed on every executor, or refused.

Events of executors in, commands to executors and the versions' states out; all in sync code of one
event loop. Knows executors as sessions that take commands, not how these travel.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from nereid.errors import INTERNAL_MESSAGE, Internal, NereidError, Unavailable
from nereid.model_config import with_instance_groups
from nereid.pb import nereid_pb2 as pb
from services.scheduler.completion import complete, needs_description
from services.scheduler.instance import BatchStream, Instance
from services.scheduler.latencies import MetricsConfig
from services.scheduler.lifecycle import Standing, VersionState, reason_of
from services.scheduler.model import ModelVersion, QueueLimits
from services.scheduler.placement import Slot, gpu_ids, place, require_backend
from services.scheduler.response_cache import ResponseCache, place_of
from services.scheduler.revision import revision_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nereid.messages import Fault
    from nereid.tracing import Tracer
    from services.scheduler.cache_client import CacheClient
    from services.scheduler.catalogue import Catalogue, ServedVersion
    from services.scheduler.completion import CompletionRules

_log = logging.getLogger(__name__)


class CommandStream(Protocol):
    """The scheduler's end of a Join stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class Part:
    """What one executor has, or is getting, of one version."""

    instances: dict[int, Instance] = field(default_factory=dict)
    # All of them have been ready at once.
    completed: bool = False

    @property
    def ready(self) -> int:
        return sum(instance.stream is not None for instance in self.instances.values())


@dataclass(slots=True, eq=False)
class Session:
    """An executor that has joined, from its hello to its end."""

    hello: pb.Hello
    stream: CommandStream
    parts: dict[ServedVersion, Part] = field(default_factory=dict)
    leaving: bool = False
    # What it told last of its devices.
    usage: pb.DeviceUsage | None = None

    @property
    def name(self) -> str:
        return self.hello.name

    def send(self, command: pb.ExecutorCommand) -> None:
        self.stream.send(command.SerializeToString())


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an instance belongs."""

    instance: Instance
    served: ServedVersion
    session: Session


@dataclass(frozen=True)
class LoadRules:
    """What the settings say of loading and of the queues to be made."""

    completion: CompletionRules
    backend_settings: Callable[[str], dict[str, str]]
    limits: QueueLimits
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    tracer: Tracer | None = None
    # None: there is no cache.
    cache: CacheClient | None = None


class Loader:
    """The owner of all versions' lives. on_change: some version's state is another now."""

    def __init__(
        self, catalogue: Catalogue, rules: LoadRules, on_change: Callable[[], None]
    ) -> None:
        self._catalogue = catalogue
        self._rules = rules
        self._on_change = on_change
        self._sessions: dict[str, Session] = {}
        # What an executor that joins is told first.
        self.greeting: Callable[[], Iterable[pb.ExecutorCommand]] = tuple
        self._placed: dict[int, Placed] = {}
        self._describing: dict[int, tuple[ServedVersion, Session]] = {}
        # An executor's thread from before a restart of the scheduler must not match by chance.
        self._ids = count(int.from_bytes(os.urandom(5), "little") << 20 | 1)

    def start(self) -> None:
        """Complete what can be completed without an executor, and wait for one with the rest."""
        for served in self._catalogue.versions():
            if served.life.final:
                continue
            served.life.await_executor()
            if not needs_description(served.draft, self._rules.completion):
                self._complete(served, None)

    # ---- executors

    @property
    def sessions(self) -> Collection[Session]:
        """The executors that have joined."""
        return self._sessions.values()

    @property
    def open_instances(self) -> int:
        """How many instances' streams are open."""
        return sum(placed.instance.stream is not None for placed in self._placed.values())

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
        backends = ", ".join(session.hello.backends)
        _log.info("executor '%s' joined with backends: %s", session.name, backends)
        for served in self._catalogue.versions():
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
        self._forget_standing(session)

    def left(self, session: Session) -> None:
        """Its control stream is at its end; so is the executor, unless it was leaving in peace."""
        if not session.leaving:
            _log.warning("executor '%s' is gone", session.name)
        self._forget(session)
        for part in session.parts.values():
            for instance in list(part.instances.values()):
                if not (session.leaving and instance.running is not None):
                    self._drop(part, instance, f"executor '{session.name}' was lost")
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
        placed = self._placed.get(number)
        if placed is None or placed.session.leaving:
            return None
        instance, served = placed.instance, placed.served
        old = instance.stream
        if old is not None:
            self.instance_closed(placed, old)
            old.finish()
        instance.stream = stream
        assert served.runtime is not None, "placed, but not in service"  # noqa: S101
        served.runtime.add_instance(instance)
        part = placed.session.parts[served]
        if part.completed or part.ready == len(part.instances):
            part.completed = True
            self._report(served, placed.session, Standing.UP)
        return placed

    def instance_closed(self, placed: Placed, stream: BatchStream) -> None:
        """An instance's stream broke. It may dial again for as long as its executor is joined."""
        instance, served, session = placed.instance, placed.served, placed.session
        if instance.stream is not stream:
            return
        instance.stream = None
        if served.runtime is not None:
            cause = f"instance '{instance.name}' of executor '{session.name}' was lost"
            served.runtime.lose_instance(instance, cause)
        part = session.parts[served]
        if session.leaving:
            self._placed.pop(instance.id, None)
        elif part.completed and not part.ready and part.instances:
            self._report(served, session, Standing.LOADING)

    def instance_failed(self, session: Session, number: int, fault: Fault) -> None:
        """An instance could not be loaded, or ended for good."""
        placed = self._placed.get(number)
        if placed is None or placed.session is not session:
            return
        served, part = placed.served, session.parts[placed.served]
        reason = reason_of(fault.code, fault.message)
        _log.warning("executor '%s' has no %s: %s", session.name, placed.instance.name, reason)
        self._drop(part, placed.instance, f"instance '{placed.instance.name}' failed")
        if session.leaving:
            # It was loading and found itself refused: that says nothing of the model.
            return
        if not part.completed:
            # As on Triton, one instance that cannot be loaded fails the load.
            for instance in list(part.instances.values()):
                unload = pb.UnloadInstance(instance=instance.id)
                session.send(pb.ExecutorCommand(unload=unload))
                self._drop(part, instance, f"the load on executor '{session.name}' failed")
        if not part.ready:
            self._fail(served, session, reason)

    # ---- loading

    def _consider_all(self, served: ServedVersion) -> None:
        for session in list(self._sessions.values()):
            self._consider(served, session)

    def _consider(self, served: ServedVersion, session: Session) -> None:
        """Have an executor do its share, unless it is doing so or has failed to."""
        life = served.life
        if life.final or served in session.parts or life.failed_on(session):
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
        command = next(self._ids)
        self._describing[command] = (served, session)
        self._report(served, session, Standing.LOADING)
        describe = pb.Describe(command=command, config=served.draft, version_path=served.path)
        session.send(pb.ExecutorCommand(describe=describe))

    def _complete(self, served: ServedVersion, described: pb.Described | None) -> None:
        """Make the configuration whole and the version ready to queue requests."""
        error: NereidError
        try:
            config = complete(served.draft, described, self._rules.completion)
            served.runtime = ModelVersion(
                config, served.number, self._rules.limits, self._rules.tracer
            )
            if config.response_cache and self._rules.cache is not None:
                most = self._rules.limits.max_queue_size
                served.runtime.cache = ResponseCache(served.runtime, self._rules.cache, most)
            served.runtime.statistics.latencies = self._rules.metrics.latencies_of(config)
            return
        except NereidError as refused:
            error = refused
        except Exception:
            _log.exception("the configuration of %s cannot be completed", served)
            error = Internal(INTERNAL_MESSAGE)
        reason = reason_of(error.code, error.message)
        self._settle(served, partial(served.life.refuse, reason))

    def _place(self, served: ServedVersion, session: Session) -> None:
        assert served.runtime is not None, "placed before its configuration was whole"  # noqa: S101
        config = served.runtime.config
        try:
            slots = place(config, session.hello)
        except NereidError as error:
            self._fail(served, session, reason_of(error.code, error.message))
            return
        if served.shown is None:
            served.shown = with_instance_groups(config.proto, gpu_ids=gpu_ids(session.hello))
        part = session.parts[served] = Part()
        self._report(served, session, Standing.LOADING)
        revision = b""
        if served.runtime.cache is not None:
            # Before it is loaded: if files change meanwhile, the answers belong to no revision
            # that will be looked for again.
            revision = revision_of(config.proto, served.path)
            served.runtime.cache.revise(place_of(served.name, served.number, revision))
        for slot in slots:
            instance = Instance(next(self._ids), slot.name, session.name, revision=revision)
            part.instances[instance.id] = instance
            self._placed[instance.id] = Placed(instance, served, session)
        for instance, slot in zip(list(part.instances.values()), slots, strict=True):
            session.send(pb.ExecutorCommand(load=self._load_command(served, instance, slot)))

    def _load_command(
        self, served: ServedVersion, instance: Instance, slot: Slot
    ) -> pb.LoadInstance:
        assert served.runtime is not None, "placed before its configuration was whole"  # noqa: S101
        config = served.runtime.config
        return pb.LoadInstance(
            instance=instance.id,
            config=config.proto,
            version=served.number,
            version_path=served.path,
            instance_name=instance.name,
            kind=slot.kind,
            device_id=slot.device_id,
            backend_settings=self._rules.backend_settings(config.backend),
        )

    # ---- book-keeping

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    def _forget_standing(self, session: Session) -> None:
        for served in self._catalogue.versions():
            self._settle(served, partial(served.life.forget, session))

    def _drop(self, part: Part, instance: Instance, cause: str) -> None:
        placed = self._placed.pop(instance.id, None)
        part.instances.pop(instance.id, None)
        stream, instance.stream = instance.stream, None
        if stream is not None:
            stream.finish()
        if placed is not None and placed.served.runtime is not None:
            placed.served.runtime.lose_instance(instance, cause)

    def _report(self, served: ServedVersion, session: Session, standing: Standing) -> None:
        if standing is Standing.LOADING and served.load_began_s is None:
            served.load_began_s = time.monotonic()
        self._settle(served, partial(served.life.report, session, standing))

    def _fail(self, served: ServedVersion, session: Session, reason: str) -> None:
        self._settle(served, partial(served.life.report, session, Standing.FAILED, reason))

    def _settle(self, served: ServedVersion, event: Callable[[], None]) -> None:
        """Let an event happen to a version, and act on what became of it."""
        life = served.life
        before = (life.state, life.reason)
        event()
        if (life.state, life.reason) == before:
            return
        if life.state is VersionState.READY and served.load_duration_s is None:
            began_s = served.load_began_s
            served.load_duration_s = 0.0 if began_s is None else time.monotonic() - began_s
        told = f": {life.reason}" if life.reason else ""
        level = logging.INFO if life.state is not VersionState.UNAVAILABLE else logging.ERROR
        _log.log(level, "model %s is %s%s", served, life.state.value, told)
        if life.state is VersionState.UNAVAILABLE and served.runtime is not None:
            served.runtime.fail_all(Unavailable(f"model {served} failed: {life.reason}", late=True))
        self._on_change()
