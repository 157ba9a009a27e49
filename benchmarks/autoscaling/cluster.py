"""Executors in pods that start, drain and end, with a real scheduler core, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from benchmarks.simulation.mesh import (
    REQUEST_S,
    InstanceStream,
    SimulatedScheduler,
    Size,
    head_of,
    model_text,
)
from nereid.core.wire.messages import InferRequest
from nereid.observability.metrics_page import Page
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.control.repository.repositories import Repositories
from nereid_scheduler.core.measurements.latencies import MetricsConfig
from nereid_scheduler.pages.metrics import SchedulerMetrics
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.versions.queue_limits import QueueLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nereid.core.wire.messages import InferResponse

MODEL = "m0"


class Cluster:
    """Cluster of clients, one scheduler, and a Deployment of executors with one instance each.

    A Cluster must be created inside a VirtualLoop. start_s: from a pod's creation until its
    executor has joined. execution_s: bounds of the execution time of one request. responses: for
    each response, its time of arrival and its latency, in seconds. failures: error texts of failed
    requests.
    """

    def __init__(
        self,
        start_s: float,
        execution_s: tuple[float, float],
        *,
        no_executor_timeout_s: float = 300.0,
        seed: int = 1,
    ) -> None:
        self.size = Size(0, 1)
        self.loop = asyncio.get_running_loop()
        self.random = random.Random(seed)
        self.execution_s = execution_s
        self.request_s = REQUEST_S
        self.busy_s = 0.0
        self.executions = 0
        self.responses: list[tuple[float, float]] = []
        self.failures: list[str] = []
        self._start_s = start_s
        self._began_s = self.loop.time()
        self._head = head_of(MODEL, 0)
        self._sent_s: dict[int, float] = {}
        self._sent = 0
        self._drained: asyncio.Future[None] | None = None
        self._pods: list[_Pod] = []
        self._numbers = 0
        # Number of pods that have not ended, those that drain included.
        self._running = 0
        self._pod_s = 0.0
        self._counted_s = 0.0
        limits = QueueLimits(no_executor_timeout_s=no_executor_timeout_s, waiting_batches=0)
        self._scheduler = scheduler = SimulatedScheduler(self, limits)
        self._metrics = SchedulerMetrics(
            scheduler.catalogue,
            scheduler.loader,
            scheduler.load_queue,
            [scheduler.gateway],
            MetricsConfig(),
            repositories=Repositories([]),
        )
        scheduler.load(MODEL, model_text(self.size))

    @property
    def now_s(self) -> float:
        """Seconds since the cluster's start."""
        return self.loop.time() - self._began_s

    # ---- the Deployment

    @property
    def replicas(self) -> int:
        """Number of pods that should run, including those that have not started yet."""
        return len(self._pods)

    @property
    def ready(self) -> int:
        """Number of pods that should run and have started."""
        return sum(pod.joined for pod in self._pods)

    @property
    def pod_s(self) -> float:
        """Cost of the pods: seconds that all of them have run, including starting and draining."""
        self._count_pods(0)
        return self._pod_s

    def scale(self, replicas: int) -> None:
        """Create or end pods until there are this many, as a ReplicaSet does.

        Pods that have not started end first, then the youngest.
        """
        while len(self._pods) < replicas:
            self._count_pods(1)
            self._numbers += 1
            self._pods.append(_Pod(self, f"executor{self._numbers}"))
        if len(self._pods) > replicas:
            by_age = sorted(self._pods, key=lambda pod: pod.joined, reverse=True)
            for pod in by_age[replicas:]:
                self._pods.remove(pod)
                pod.end()

    def start_pod(self, pod: _Pod) -> None:
        """Make a pod's executor join when the time for starting has passed."""
        pod.timer = self.loop.call_later(self._start_s, pod.join, self._scheduler)

    def pod_ended(self) -> None:
        """Note that a pod has drained, or has never started."""
        self._count_pods(-1)

    def _count_pods(self, change: int) -> None:
        self._pod_s += self._running * (self.now_s - self._counted_s)
        self._counted_s = self.now_s
        self._running += change

    # ---- clients

    def offer(self, times_s: Iterable[float]) -> None:
        """Send a request at each of these times, without waiting for earlier responses."""
        arrivals = iter(times_s)
        self._await_next(arrivals)

    def _await_next(self, arrivals: Iterator[float]) -> None:
        time_s = next(arrivals, None)
        if time_s is not None:
            self.loop.call_at(self._began_s + time_s, self._submit, arrivals)

    def _submit(self, arrivals: Iterator[float]) -> None:
        self._sent += 1
        self._sent_s[self._sent] = self.now_s
        self._scheduler.gateway.on_items([InferRequest(self._sent, self._head, [b"x"])])
        self._await_next(arrivals)

    async def drain(self) -> None:
        """Wait until every request has had its response."""
        if self._sent_s:
            self._drained = self.loop.create_future()
            await self._drained

    def send(self, item: InferResponse, at_once: bool = False) -> None:  # noqa: ARG002 (as Link)
        """Count a response at the gateway's end of the link."""
        took_s = self.now_s - self._sent_s.pop(item.id)
        self.responses.append((self.now_s, took_s))
        if item.error is not None:
            self.failures.append(item.error.message)
        if self._drained is not None and not self._sent_s and not self._drained.done():
            self._drained.set_result(None)

    # ---- Prometheus

    def page(self) -> str:
        """Return the scheduler's metrics."""
        page = Page()
        self._metrics.write(page)
        return page.encode().decode()


class _Pod:
    """One executor, from its pod's creation on."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.joined = False
        self.timer: asyncio.TimerHandle | None = None
        self._cluster = cluster
        self._name = name
        self._stream: _DrainedStream | None = None
        cluster.start_pod(self)

    def join(self, scheduler: SimulatedScheduler) -> None:
        """Join the scheduler."""
        hello = pb.Hello(name=self._name, host=self._name, backends=["python"])
        self._scheduler = scheduler
        self._session = Session(hello, self)
        self.joined = True
        scheduler.loader.executor_joined(self._session)

    def end(self) -> None:
        """End as after SIGTERM: finish what executes, and take nothing new."""
        if not self.joined:
            if self.timer is not None:
                self.timer.cancel()
            self._cluster.pod_ended()
            return
        self._scheduler.loader.executor_leaving(self._session)
        if self._stream is None or not self._stream.busy:
            self._leave()
        else:
            self._stream.on_idle = self._leave

    def _leave(self) -> None:
        self._scheduler.loader.executor_left(self._session)
        if self._stream is not None:
            self._stream.close(self._scheduler)
        self._cluster.pod_ended()

    # ---- its Join stream

    def send(self, message: bytes) -> None:
        """Take a command of the Join stream."""
        command = pb.ExecutorCommand.FromString(message)
        if command.HasField("load"):
            self._cluster.loop.call_soon(self._loaded, command.load.instance)

    def finish(self) -> None:
        """Do nothing: nothing is open."""

    def _loaded(self, number: int) -> None:
        stream = _DrainedStream(self._cluster)
        placed = self._scheduler.loader.streams.instance_opened(number, stream)
        if placed is not None:
            stream.serve(placed)
            self._stream = stream


class _DrainedStream(InstanceStream):
    """Stream of an instance that can say when it is idle."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.busy = 0
        self.on_idle: Callable[[], None] = lambda: None

    def send(self, message: bytes, at_once: bool = False) -> None:
        """Take a batch."""
        self.busy += 1
        super().send(message, at_once=at_once)

    def _complete(self, reply: bytes) -> None:
        super()._complete(reply)
        self.busy -= 1
        if not self.busy:
            self.on_idle()

    def close(self, scheduler: SimulatedScheduler) -> None:
        """End, as the instance's process does."""
        scheduler.loader.streams.instance_closed(self.placed, self)
