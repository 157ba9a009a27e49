"""Accepts the executors' streams: one Join per executor, one Execute per ready instance."""

# layout: compiled

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.errors import ProtocolError
from nereid.core.methods import (
    CONFINED_KEY,
    CONTROLS_KEY,
    CRASH_REPORTS_KEY,
    EXECUTOR_KEY,
    INSTANCE_KEY,
    MEMORY_KEY,
    READINESS_KEY,
    STATES_KEY,
    WITHDRAWALS_KEY,
)
from nereid.core.wire.codecs import read_error
from nereid.observability.refusal_log import RefusalLog
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_scheduler.core.instances.remote_instance import CrashReport
from nereid_scheduler.core.memory.sizes import read_sizes
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.loads.readiness import on_readiness_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc import Call
    from nereid_scheduler.placement.executors.drains import Drains
    from nereid_scheduler.placement.executors.sessions import PlacedInstance
    from nereid_scheduler.placement.executors.timelines import Timelines
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.versions.instance_pool import InstancePool

_log = logging.getLogger(__name__)

_MAX_NAME_LENGTH: Final = 256
_MAX_DIGITS: Final = 20


class ExecutorStreams:
    """Accepts the executors' streams for one loader."""

    def __init__(
        self,
        loader: Loader,
        timelines: Timelines,
        drains: Drains,
        rights_for_call: Callable[[pb.CallQuery], pb.CallRights],
    ) -> None:
        self.loader = loader
        self.timelines = timelines
        self.drains = drains
        self.rights_for_call = rights_for_call
        self.refusals = RefusalLog(_log)

    def accept_join(self, call: Call) -> None:
        """Open an executor's control stream."""
        _JoinStream(self, call)
        call.accept()

    def accept_execute(self, call: Call) -> None:
        """Open the stream of an instance that is loaded and warm."""
        _accept_execute(self.loader, call)


def _accept_execute(loader: Loader, call: Call) -> None:
    text = call.get(INSTANCE_KEY)
    number = _number(text)
    call.accept()
    crash_stream = _number(call.get(CRASH_REPORTS_KEY)) or 0
    placed = loader.streams.instance_opened(number or 0, call, _process_of(call), crash_stream)
    if placed is None or placed.served.pool is None:
        call.fail(Status.NOT_FOUND, f"instance {text!r} is not known; it may have been unloaded")
        return
    placed.session.hosted[placed.served].memory[placed.instance.id] = read_sizes(
        call.get(MEMORY_KEY)
    )
    placed.instance.accepts_controls = call.get(CONTROLS_KEY) is not None
    placed.instance.reports_readiness = call.get(READINESS_KEY) is not None
    placed.instance.has_states = call.get(STATES_KEY) is not None
    placed.instance.accepts_waiting = call.get(WITHDRAWALS_KEY) is not None
    if call.get(CONFINED_KEY) is not None:
        placed.instance.shares = False
        call.claim_connection()
    if crash_stream:
        call.set_keepalive(None, 0.0)
    call.on_message = partial(_on_reply, loader, placed, placed.served.pool, call)
    call.on_cancel = partial(_end_execute, loader, placed, call)
    call.on_half_close = call.on_cancel


def _on_reply(
    loader: Loader, placed: PlacedInstance, pool: InstancePool, call: Call, message: bytes
) -> None:
    if placed.instance.stream is not call:
        return  # From an older stream.
    try:
        pool.on_reply(placed.instance, message)
    except ProtocolError as error:
        loader.streams.end_stream(placed, error)


def _number(text: str | bytes | None) -> int | None:
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    return None


def _process_of(call: Call) -> str:
    process = call.get(EXECUTOR_KEY)
    return process if isinstance(process, str) else ""


def _end_execute(loader: Loader, placed: PlacedInstance, call: Call) -> None:
    loader.streams.instance_closed(placed, call)
    call.finish()


class _JoinStream:
    def __init__(self, streams: ExecutorStreams, call: Call) -> None:
        self._loader = streams.loader
        self._timelines = streams.timelines
        self._drains = streams.drains
        self._refusals = streams.refusals
        self._rights_for_call = streams.rights_for_call
        self._call = call
        self._session: Session | None = None
        self._sent_unknown = False
        call.on_message = self._on_message
        call.on_cancel = self._end
        call.on_half_close = self._end

    def _on_message(self, message: bytes) -> None:
        try:
            event = pb.ExecutorEvent.FromString(message)
        except DecodeError:
            self._refuse("a message of the executor cannot be read")
            return
        kind = event.WhichOneof("event")
        if self._session is None:
            if kind == "hello" and 0 < len(event.hello.name) <= _MAX_NAME_LENGTH:
                self._join(event.hello)
            else:
                text = f"a hello with a name of 1 to {_MAX_NAME_LENGTH} characters"
                self._refuse(f"the first message must be {text}")
            return
        self._on_event(self._session, kind, event)

    def _join(self, hello: pb.Hello) -> None:
        if not self._call.peer_is_local:
            # Shared memory works only within one host. A namespace is not secret, so an executor on
            # another host could name it.
            hello.shm_namespace = ""
        session = Session(hello, self._call, _process_of(self._call))
        if self._loader.executor_joined(session):
            self._session = session
            # Accept now: if models are loaded on demand, the first command may come much later.
            self._call.accept()
        else:
            # A dead process may hold the name until its streams have ended.
            text = f"another executor has joined as '{hello.name}': give this one another --name"
            self._refuse(text, Status.ALREADY_EXISTS)

    def _on_event(self, session: Session, kind: str | None, event: pb.ExecutorEvent) -> None:
        if kind == "described":
            self._loader.loads.model_described(session, event.described)
        elif kind == "load_progress":
            self._loader.loads.load_progressed(session, event.load_progress)
        elif kind == "recalled":
            self._loader.first_runs.on_recalled(session, event.recalled)
        elif kind == "begun_requests":
            self._loader.first_runs.executor_reported(session, event.begun_requests)
        elif kind == "leaving":
            self._loader.executor_leaving(session)
            self._drains.on_left(session)
        elif kind == "hello":
            self._refuse("an executor says hello once")
        elif (
            not self._on_report(session, kind, event)
            and not self._on_instance_event(session, kind, event)
            and not self._sent_unknown
        ):
            # During an upgrade a newer executor may send events that this scheduler does not need.
            self._sent_unknown = True
            _log.warning("executor '%s' sends unknown events; ignoring them", session.name)

    def _on_report(self, session: Session, kind: str | None, event: pb.ExecutorEvent) -> bool:
        if kind == "usage":
            session.usage = event.usage
        elif kind == "custom_metrics":
            session.custom_metrics = event.custom_metrics
        elif kind == "timeline":
            self._timelines.on_frames(session, event.timeline)
        elif kind == "call_query":
            rights = self._rights_for_call(event.call_query)
            session.send(pb.ExecutorCommand(call_rights=rights))
        else:
            return False
        return True

    def _on_instance_event(
        self, session: Session, kind: str | None, event: pb.ExecutorEvent
    ) -> bool:
        if kind == "instance_failed":
            failed = event.instance_failed
            self._loader.streams.instance_failed(session, failed.instance, read_error(failed.error))
        elif kind == "instance_unloaded":
            unloaded = event.instance_unloaded.instance
            _log.debug("executor '%s' unloaded %d", session.name, unloaded)
            self._loader.streams.instance_unloaded(session, unloaded)
        elif kind == "instance_lost":
            lost = event.instance_lost
            report = CrashReport(lost.begun, read_error(lost.error), lost.stream)
            self._loader.crash_recovery.on_report(session, lost.instance, report)
        elif kind == "withdrawn":
            self._loader.streams.batch_withdrawn(session, event.withdrawn)
        elif kind == "readiness_report":
            placed = self._loader.instances.placed.get(event.readiness_report.instance)
            on_readiness_report(placed, session, event.readiness_report)
        else:
            return False
        return True

    def _refuse(self, why: str, status: Status = Status.INVALID_ARGUMENT) -> None:
        self._refusals.report(self._call.peer, status.name, "executor at %s refused: %s", why)
        self._call.fail(status, why)
        self._end()

    def _end(self) -> None:
        self._call.on_message = None
        if self._session is not None:
            self._loader.executor_left(self._session)
            self._timelines.executor_left(self._session)
            self._drains.on_left(self._session)
            self._session = None
        self._call.finish()
