"""Reports facts about the mesh that are not metrics: which processes run which models, where."""

from __future__ import annotations

import socket
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.measurements.latency_histograms import NO_LOAD
from nereid_scheduler.placement.executors.sessions import memory_of
from nereid_scheduler.versions.ensembles.ensemble_dispatcher import EnsembleDispatcher

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from nereid.timeline.event_log import EventLog
    from nereid_scheduler.admission.gateway_session import GatewaySession
    from nereid_scheduler.control.shards.members.membership import Membership
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.measurements.latency_histograms import RecentLoad
    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
    from nereid_scheduler.versions.model_version import ModelVersion

# Maximum number of names. Owned models beyond the limit are still counted.
_MAX_OWNED: Final = 200
_MAX_HOSTED: Final = 1000
_MAX_BATCHES: Final = 32
_MAX_MEMBERS: Final = 64
_MAX_ID_CHARACTERS: Final = 200
# Limit on the events of a response; the oldest are left out.
MAX_EVENTS: Final = 500
_ONLY: Final = "scheduler"


class HostingFacts:
    """Responds to Facts calls."""

    def __init__(
        self,
        catalogue: Catalogue,
        loader: Loader,
        gateways: Collection[GatewaySession],
        events: EventLog,
        membership: Membership | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._loader = loader
        self._gateways = gateways
        self._events = events
        self._membership = membership
        self._host_name = socket.gethostname()

    def respond(self, request: pb.FactsRequest) -> pb.FactsResponse:
        """Return the facts as they are at this moment."""
        response = pb.FactsResponse(
            executors=map(_executor, self._loader.sessions), schedulers=[self._scheduler()]
        )
        wanted = frozenset(request.models)
        if wanted:
            for served in self._catalogue.versions():
                if (name := served.plain_name) in wanted:
                    response.configs.add(model=name, version=served.number, config=served.draft)
            response.batches.extend(islice(self._batches(wanted), _MAX_BATCHES))
        if request.with_loads:
            response.loads.extend(self._loads(wanted))
        if request.events:
            response.events.extend(self._last_events(min(request.events, MAX_EVENTS)))
        return response

    def _last_events(self, most: int) -> Iterator[pb.MeshEvent]:
        epoch_ns = time.time_ns() - time.monotonic_ns()
        name = self.name
        for logged in self._events.last(most):
            event = logged.event
            yield pb.MeshEvent(
                scheduler=name,
                number=logged.number,
                time_s=(epoch_ns + logged.ended_ns) / 1e9,
                duration_us=max(0, event.to_ns - event.from_ns) // 1000,
                what=event.what,
                subject=event.subject,
                detail=event.detail,
                model=logged.model,
                cause=logged.cause,
                principal=logged.principal,
            )

    def _loads(self, wanted: Collection[str]) -> Iterator[pb.VersionLoad]:
        now_ns = time.monotonic_ns()
        for served in self._catalogue.versions():
            runtime = served.runtime
            if runtime is not None:
                load = _load(runtime, now_ns)
                if load is not None:
                    load.model, load.version = served.plain_name, served.number
                    if load.model in wanted:
                        minutes = runtime.statistics.histograms.by_minute(now_ns)
                        load.minutes.extend(_minutes(one, age) for age, one in minutes)
                        load.steps.extend(_steps(runtime, now_ns))
                    yield load

    def _batches(self, wanted: Collection[str]) -> Iterator[pb.ExecutingBatch]:
        now_ns = time.monotonic_ns()
        for session in self._loader.sessions:
            for served, sent in session.executing():
                if (name := served.plain_name) in wanted:
                    yield _batch(name, served.number, sent, now_ns)

    def _scheduler(self) -> pb.SchedulerFacts:
        names = sorted(model.plain_name for model in self._catalogue.models() if model.in_service)
        membership = self._membership
        return pb.SchedulerFacts(
            name=self.name,
            epoch=0 if membership is None else membership.epoch,
            gateways=sum(not gateway.for_models for gateway in self._gateways),
            owned=names[:_MAX_OWNED],
            models=len(names),
            reachable=True,
            host_name=self._host_name,
            events=self._events.recorded,
        )

    @property
    def name(self) -> str:
        """Name of the scheduler in the mesh."""
        return _ONLY if self._membership is None else self._membership.name


def _load(runtime: ModelVersion, now_ns: int) -> pb.VersionLoad | None:
    statistics, pending = runtime.statistics, runtime.dispatcher.pending
    last_30 = statistics.histograms.recent(now_ns)
    if last_30 is None and not pending:
        return None
    compute = statistics.compute
    return pb.VersionLoad(
        pending=pending,
        requests=statistics.success.count - statistics.error_responses,
        failures=statistics.fail.count + statistics.error_responses,
        request_us=statistics.success.ns // 1000,
        queue_us=statistics.queue_ns // 1000,
        compute_input_us=compute.input_ns // 1000,
        compute_infer_us=compute.infer_ns // 1000,
        compute_output_us=compute.output_ns // 1000,
        last_30=_minutes(last_30 or NO_LOAD),
        last_5=_minutes(statistics.histograms.recent(now_ns, 5) or NO_LOAD),
    )


def _steps(runtime: ModelVersion, now_ns: int) -> Iterator[pb.StepLoad]:
    dispatcher = runtime.dispatcher
    if isinstance(dispatcher, EnsembleDispatcher):
        for index, times in dispatcher.step_times.items():
            recent = times.histograms.recent(now_ns)
            if recent is not None:
                mean_us = times.ns / 1000 / max(1, times.count)
                yield pb.StepLoad(index=index, last_30=_minutes(recent), mean_us=mean_us)


def _minutes(load: RecentLoad, age: int = 0) -> pb.VersionLoad.Minutes:
    return pb.VersionLoad.Minutes(age=age, **load._asdict())


def _batch(model: str, version: int, sent: SentBatch, now_ns: int) -> pb.ExecutingBatch:
    members = (
        pb.ExecutingBatch.Member(
            request_id=entry.request.request_id[:_MAX_ID_CHARACTERS],
            rows=entry.valid.batch_size,
            queue_us=max(0, sent.started_ns - entry.received_ns) // 1000,
        )
        for entry in islice(sent.batch.entries, _MAX_MEMBERS)
    )
    return pb.ExecutingBatch(
        model=model,
        version=version,
        instance=sent.instance,
        reason=sent.batch.reason,
        rows=sent.batch.size,
        age_us=max(0, now_ns - sent.started_ns) // 1000,
        members=members,
    )


def _executor(session: Session) -> pb.ExecutorFacts:
    hello = session.hello
    return pb.ExecutorFacts(
        name=hello.name,
        host=hello.host,
        host_name=hello.host_name,
        sandbox=hello.sandbox,
        devices=hello.devices,
        backends=hello.backends,
        usage=session.usage,
        hosted=(_hosted(served, session) for served in islice(session.hosted, _MAX_HOSTED)),
    )


def _hosted(served: ServedVersion, session: Session) -> pb.HostedModel:
    hosted = session.hosted[served]
    return pb.HostedModel(
        model=served.plain_name,
        version=served.number,
        instances=hosted.ready,
        busy=sum(instance.batches.at_work for instance in hosted.instances.values()),
        memory_bytes=memory_of(served, [session]),
    )
