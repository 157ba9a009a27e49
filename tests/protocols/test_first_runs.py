"""First runs and recalls: requests that are sent again after a scheduler or a link was lost.

The gateway is a MeshRouter, schedulers have their Admission, FirstRuns with its Recalls,
OrphanedRequests and a ModelVersion; executors their RecentRuns, BegunReports and ModelClaims, and
one instance for each session. Between them are a link of the gateway's to each scheduler, and the
Join and Execute streams of each executor with each.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from nereid.core.errors import Aborted
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import CachedModels, InferRequest, InferResponse, Ownership
from nereid.mesh_routing.several.mesh_router import MeshRouter
from nereid.model_config import parse_config
from nereid.pb import nereid_pb2 as pb
from nereid.version import is_compiled
from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.instances.claims.begun_reports import BegunReport, BegunReports
from nereid_executor.instances.claims.model_claims import Grant, ModelClaims, Rank
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_scheduler.admission.admission import Admission, LinkSession
from nereid_scheduler.admission.gateway_session import GatewaySession
from nereid_scheduler.admission.orphaned_requests import OrphanedRequest
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.models.lifecycle import LoadStatus
from nereid_scheduler.core.requests.load_queue import LoadQueue
from nereid_scheduler.placement.executors.sessions import Session
from nereid_scheduler.placement.models.catalogue import Catalogue
from nereid_scheduler.versions.model_version import ModelVersion
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.reruns.first_runs import FirstRuns
from nereid_scheduler.versions.version_context import VersionContext
from nereid_scheduler.versions.waits.recalls import Recalls
from tests.protocols.explorer import Action, Channel, World, explore, explore_random
from tests.protocols.message import Message
from tests.protocols.virtual_loop import VirtualLoop
from tests.support.mesh.fake_link import IGNORE
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import HEAD, TENSORS, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from nereid.model_config import ModelConfig
    from nereid.pb import model_config_pb2
    from nereid_executor.core.recent_runs import OnRecalled
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.waits.recalls import Decision

_MODEL: Final = "m"
_AT_MOST_ONCE: Final = 'parameters { key: "at_most_once" value { string_value: "true" } }'
# Responses of more bytes than this are not kept; those of requests with odd numbers have more.
_MAX_KEPT_BYTES: Final = 100


class FirstRunsWith(FirstRuns):
    """With recalls that have a deliberate defect."""

    def __init__(self, recalls: type[Recalls]) -> None:
        super().__init__()
        self.recalls = recalls(self.recalls._grace_ends_s, self.recalls._takeover_grace_s, 1000)


@dataclass(frozen=True)
class Parts:
    """What a deliberate defect replaces."""

    recalls: type[Recalls] = Recalls
    session: Callable[[Admission], GatewaySession] = GatewaySession
    admission: Callable[..., Admission] = Admission
    runs: Callable[..., RecentRuns] = RecentRuns
    reports: Callable[[Callable[[], list[int]]], BegunReports] = BegunReports


@cache
def _configs_of(text: str) -> tuple[ModelConfig, model_config_pb2.ModelConfig]:
    """Complete, and as written."""
    return model_of(text + TENSORS), parse_config(f'name: "{_MODEL}" {text}', model_name=_MODEL)


class Link:
    """A connection of the gateway's with a scheduler, until both have seen its end."""

    def __init__(self, world: FirstRunsWorld, scheduler: Scheduler) -> None:
        self.world, self.scheduler = world, scheduler
        self.at_gateway = self.at_scheduler = True
        scheduler.links.append(self)
        name = f"link {len(scheduler.links)} of {scheduler.name}"
        self.name = name
        self.requests = Channel(f"requests on {name}", self._on_requests)
        self.responses = Channel(f"responses on {name}", self._on_responses)
        self.session = scheduler.open_session(self)

    def send_request(self, item: Any) -> None:
        again = " again" if isinstance(item, InferRequest) and item.resent else ""
        text = f"{type(item).__name__} {self.world.number(item.id)}{again}"
        self.requests.send(Message(RequestCodec().encode([item]), text))

    def send_response(self, item: Any, at_once: bool = False) -> None:
        text = f"{type(item).__name__} {self.world.number(item.id)}" if item.id else str(item)
        self.responses.send(Message(ResponseCodec().encode([item]), text))

    def _on_requests(self, message: Any) -> None:
        items = RequestCodec().decode(message.body)
        self.scheduler.loop.settle(self.session.on_items, items)

    def _on_responses(self, message: Any) -> None:
        client = self.world.clients[self.scheduler.name]
        self.world.loop.settle(client.on_items, ResponseCodec().decode(message.body))

    def break_off(self) -> None:
        """What has not arrived never does."""
        self.requests.close()
        self.responses.close()

    def actions(self) -> Iterator[Action]:
        scheduler = self.scheduler
        if self.at_scheduler and scheduler.alive:
            yield from self.requests.arrivals()
        if self.at_gateway:
            yield from self.responses.arrivals()
            if self.requests.broken or not scheduler.alive:
                text = f"the gateway sees the end of {self.name}"
                yield Action("gateway", text, self._end_at_gateway)

    def slow_actions(self) -> Iterator[Action]:
        scheduler = self.scheduler
        if self.at_scheduler and scheduler.alive and self.requests.broken:
            text = f"{scheduler} sees the end of {self.name}"
            yield Action(f"{scheduler}", text, self._end_at_scheduler)

    def _end_at_scheduler(self) -> None:
        self.at_scheduler = False
        self.scheduler.loop.settle(self.session.on_down)

    def _end_at_gateway(self) -> None:
        self.at_gateway = False
        self.break_off()
        self.world.loop.settle(self.world.clients[self.scheduler.name].on_down)


class ClientLink:
    """The gateway's way to a scheduler's address. A SchedulerLink."""

    def __init__(self, world: FirstRunsWorld, address: str, callbacks: Any) -> None:
        self.world, self.address = world, address
        self.on_items, self.on_down = callbacks["on_items"], callbacks["on_down"]
        self.up = False
        self.link: Link | None = None

    def send(self, item: Any, at_once: bool = False) -> None:
        if self.link is not None and self.link.at_gateway:
            self.link.send_request(item)

    def close(self) -> None:
        """Do nothing."""

    def actions(self) -> Iterator[Action]:
        scheduler = self.world.schedulers[self.address]
        if scheduler.accepts and (self.link is None or not self.link.at_gateway):
            yield Action("gateway", f"the gateway connects to {scheduler}", self.connect)

    def connect(self) -> None:
        scheduler = self.world.schedulers[self.address]
        self.link = Link(self.world, scheduler)
        self.link.send_response(CachedModels(()))
        self.link.send_response(scheduler.notice())


class Joined:
    """An executor's session with a scheduler, until both have seen its end: Join, and Execute."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self.executor, self.scheduler = executor, scheduler
        self.at_executor = self.at_scheduler = True
        executor.joined.append(self)
        name = f"{executor} with {scheduler} ({len(executor.joined)})"
        self.name = name
        self.commands = Channel(f"commands to {name}", self._on_command)
        self.events = Channel(f"events of {name}", self._on_event)
        self.batches = Channel(f"batches to {name}", self._on_batch)
        self.replies = Channel(f"replies of {name}", self._on_reply)
        # At the executor.
        self.claiming = self.serving = False
        self.reported = self.expired = False
        self.unread: deque[pb.Batch] = deque()
        self.executing: pb.Batch | None = None
        self.hello = pb.Hello(name=executor.name, begun_requests=executor.runs.begun_ids())
        # At the scheduler.
        self.session: Session | None = None
        self.instance: RemoteInstance | None = None
        self._send_event("hello", pb.ExecutorEvent(hello=self.hello))
        executor.reports.session_joined(self, self.hello.begun_requests)

    def _send_event(self, text: str, event: pb.ExecutorEvent) -> None:
        self.events.send(Message(event.SerializeToString(), text))

    # ---- the executor, as SchedulerSession and SessionInstances act

    def _on_command(self, message: Any) -> None:
        executor = self.executor
        command = pb.ExecutorCommand.FromString(message.body)
        kind = command.WhichOneof("command")
        if kind == "recall":
            executor.runs.recall(
                command.recall.request, partial(self._on_recalled, command.recall.request)
            )
        elif kind == "report_begun":
            query = command.report_begun
            executor.carry_out(executor.reports.session_asks(self, query.query, query.scheduler))
        else:
            self.claiming = True
            executor.reports.session_commanded(self, command.load.scheduler)
            rank = Rank(command.load.epoch, command.load.scheduler)
            if executor.claims.claim(_MODEL, self, 1, rank):
                self.on_granted()

    def _on_recalled(self, request_id: int, response: pb.InferResponse | None) -> None:
        recalled = pb.Recalled(request=request_id, response=response)
        known = "no response" if response is None else "the response"
        text = f"{known} to {self.executor.world.number(request_id)}"
        self._send_event(text, pb.ExecutorEvent(recalled=recalled))

    def send_begun(self, report: BegunReport) -> None:
        numbers = [self.executor.world.number(each) for each in report.ids]
        text = f"begun {numbers}{' as asked' if report.query else ''}"
        begun = pb.BegunRequests(ids=report.ids, query=report.query)
        self._send_event(text, pb.ExecutorEvent(begun_requests=begun))

    def on_granted(self) -> None:
        if self.at_executor:
            self.serving = True
            self.replies.send("it opens")

    def _on_batch(self, message: Any) -> None:
        self.unread.append(pb.Batch.FromString(message.body))

    def _read(self) -> None:
        batch = self.unread.popleft()
        ids = [each.id for each in batch.members]
        self.executor.world.on_begin(self, ids)
        self.executor.runs.begin(self, ids)
        self.executing = batch

    def _respond(self) -> None:
        batch, self.executing = self.executing, None
        assert batch is not None
        reply = pb.Executed(id=batch.id)
        for member in batch.members:
            number = self.executor.world.number(member.id)
            response = reply.responses.add(head=str(number).encode())
            if number % 2:
                response.payloads.add(inline=b"x" * _MAX_KEPT_BYTES)
        content = reply.SerializeToString()
        self.executor.runs.complete(self, [each.id for each in batch.members], content)
        self.replies.send(Message(content, f"executed {batch.id}"))

    def end_at_executor(self) -> None:
        """Its instance finishes what it executes."""
        self.at_executor = self.serving = False
        self.break_off()
        self.unread.clear()
        self.executor.reports.session_disconnected(self)
        self.executor.reports.session_ending(self)
        self.executor.claims.end_waiting(self)

    def _release(self) -> None:
        self.claiming = False
        executor = self.executor
        executor.carry_out(executor.reports.grant(executor.claims.release(_MODEL, self, 1)))

    def _report_end(self) -> None:
        self.reported = True
        self.executor.carry_out(self.executor.reports.session_ended(self))

    def _expire(self) -> None:
        self.expired = True
        executor = self.executor
        executor.carry_out(executor.reports.grant(executor.claims.expire(self)))

    # ---- the scheduler, as ExecutorStreams and the Loader act

    def send(self, message: bytes) -> None:
        """A CommandStream."""
        command = pb.ExecutorCommand.FromString(message)
        text = str(command.WhichOneof("command"))
        if text == "recall":
            text += f" {self.executor.world.number(command.recall.request)}"
        self.commands.send(Message(message, text))

    def finish(self) -> None:
        """Do nothing: the executor sees the end of its connection."""

    def _on_event(self, message: Any) -> None:
        event = pb.ExecutorEvent.FromString(message.body)
        self.scheduler.on_event(self, event)

    def _on_reply(self, message: Any) -> None:
        self.scheduler.on_reply(self, message)

    def send_batch(self, message: bytes, at_once: bool = False) -> None:
        batch = pb.Batch.FromString(message)
        numbers = [self.executor.world.number(each.id) for each in batch.members]
        self.batches.send(Message(message, f"batch {batch.id} of {numbers}"))

    def _end_at_scheduler(self) -> None:
        self.at_scheduler = False
        self.break_off()
        self.scheduler.on_executor_left(self)

    # ---- what may happen

    @property
    def channels(self) -> tuple[Channel, ...]:
        return self.commands, self.events, self.batches, self.replies

    def break_off(self) -> None:
        for each in self.channels:
            each.close()

    def has(self, request_id: int) -> bool:
        """Whether its instance executes this request."""
        executing = self.executing
        return executing is not None and any(each.id == request_id for each in executing.members)

    def actions(self) -> Iterator[Action]:
        executor, scheduler = self.executor, self.scheduler
        if self.at_scheduler and scheduler.alive:
            yield from self.events.arrivals()
            yield from self.replies.arrivals()
        if executor.alive:
            yield from self._executor_actions()

    def slow_actions(self) -> Iterator[Action]:
        executor, scheduler = self.executor, self.scheduler
        if self.at_scheduler and scheduler.alive and (self.events.broken or not executor.alive):
            text = f"{scheduler} sees the end of {self.name}"
            yield Action(str(scheduler), text, self._end_at_scheduler)
        if self.executing is not None and executor.alive:
            numbers = [executor.world.number(each.id) for each in self.executing.members]
            text = f"{self.name} has executed {numbers}"
            yield Action(f"thread of {self.name}", text, self._respond)

    def _executor_actions(self) -> Iterator[Action]:
        executor, thread = self.executor, f"thread of {self.name}"
        if self.at_executor:
            yield from self.commands.arrivals()
            yield from self.batches.arrivals()
            if self.events.broken or not self.scheduler.alive:
                text = f"{executor} sees the end of {self.name}"
                yield Action(str(executor), text, self.end_at_executor)
        if self.executing is None and self.unread:
            yield Action(thread, f"{self.name} begins batch {self.unread[0].id}", self._read)
        if self.at_executor:
            return
        if self.claiming and self.executing is None:
            yield Action(thread, f"{self.name}'s instance is released", self._release)
        if not self.reported:
            text = f"{self.name} is reported as ended"
            yield Action(str(executor), text, self._report_end)
        elif self.claiming and not self.expired:
            yield Action(str(executor), f"{self.name} expires", self._expire, disruption=True)


class Executor:
    """Joins every scheduler; has an instance for each session that may have one."""

    def __init__(self, world: FirstRunsWorld, name: str, lives: int = 1) -> None:
        self.world, self.name, self.lives = world, name, lives
        self.alive = True
        self.runs = world.parts.runs(max_kept_bytes=_MAX_KEPT_BYTES)
        self.reports = world.parts.reports(self.runs.begun_ids)
        self.claims = ModelClaims()
        self.joined: list[Joined] = []

    def __str__(self) -> str:
        return f"{self.name}{self.lives}" if self.lives > 1 else self.name

    def received(self) -> Iterator[int]:
        """The requests that its instances execute, or may begin."""
        for each in self.joined:
            sent = [pb.Batch.FromString(message.body) for message in each.batches.messages]  # type: ignore[attr-defined]
            for batch in (each.executing, *each.unread, *sent):
                if batch is not None:
                    yield from (member.id for member in batch.members)

    def carry_out(self, decisions: Iterable[BegunReport | Grant]) -> None:
        for each in decisions:
            session: Any = each.session
            if isinstance(each, BegunReport):
                session.send_begun(each)
            else:
                session.on_granted()

    def _join(self, scheduler: Scheduler) -> None:
        Joined(self, scheduler)

    def joins(self) -> Iterator[Action]:
        for scheduler in self.world.schedulers.values():
            mine = [each for each in self.joined if each.scheduler.name == scheduler.name]
            # Another process of this name is refused.
            known = scheduler.sessions.get(self.name)
            refused = known is not None and known.executor is not self
            if scheduler.accepts and all(each.reported for each in mine) and not refused:
                yield Action(str(self), f"{self} joins {scheduler}", partial(self._join, scheduler))


class Scheduler:
    """One process of one of the schedulers."""

    def __init__(
        self, world: FirstRunsWorld, name: str, epoch: int, lives: int = 1, *, started: bool = True
    ) -> None:
        """started: long ago."""
        self.world, self.name, self.epoch, self.lives = world, name, epoch, lives
        self.alive = True
        # Its connections end, one after the other, and it gets no new ones.
        self.cut_off = False
        self.owns = False
        # Requests may run again here though an executor may have them.
        self.blind = False
        self.links: list[Link] = []
        self.sessions: dict[str, Joined] = {}
        self.open_ids: set[int] = set()
        self.loop = VirtualLoop(name)
        self.loop.run(self._start, started)

    def __str__(self) -> str:
        return f"{self.name}{self.lives}" if self.lives > 1 else self.name

    def _start(self, started: bool) -> None:
        world = self.world
        self.first_runs = FirstRunsWith(world.parts.recalls)
        if started:
            self.first_runs.recalls.begin_grace(0.0)
        context = VersionContext(QueueLimits(max_retries=9, waiting_batches=0))
        self.model = ModelVersion(world.config, 1, context)
        catalogue = Catalogue()
        self.served = serve(
            catalogue, _MODEL, state="unknown", draft=world.draft, runtime=self.model
        )
        self.admission = world.parts.admission(
            catalogue,
            LoadQueue(1e9, 100),
            first_runs=self.first_runs,
            has_moved=lambda _: not self.owns,
        )

    @property
    def accepts(self) -> bool:
        return self.alive and not self.cut_off

    def open_session(self, link: Link) -> GatewaySession:
        session = self.world.parts.session(self.admission)
        send: Any = SimpleNamespace(send=link.send_response)
        session.link = send
        return session

    def notice(self) -> Ownership:
        return Ownership(self.name, self.epoch, (_MODEL,) if self.owns else ())

    def own(self) -> None:
        self.owns = True
        self.loop.run(self.served.life.await_executor)
        for link in self.links:
            if link.at_scheduler:
                link.send_response(self.notice())
        for each in self.sessions.values():
            self._load(each)

    def take_over(self) -> None:
        """Another scheduler was lost."""
        self.epoch += 1
        self.blind = False
        self.loop.settle(self.first_runs.begin_takeover, ["A"])
        self.own()

    def _load(self, joined: Joined) -> None:
        load = pb.LoadInstance(instance=1, scheduler=self.name, epoch=self.epoch)
        assert joined.session is not None
        joined.session.send(pb.ExecutorCommand(load=load))

    def on_event(self, joined: Joined, event: pb.ExecutorEvent) -> None:
        settle, session = self.loop.settle, joined.session
        if session is None:
            session = joined.session = Session(event.hello, joined)
            old = self.sessions.get(session.name)
            self.sessions[session.name] = joined
            settle(self.first_runs.executor_joined, session)
            if old is not None:
                old.at_scheduler = False
                old.break_off()
                self._lose(old)
            if self.owns:
                self._load(joined)
        elif event.WhichOneof("event") == "recalled":
            settle(self.first_runs.on_recalled, session, event.recalled)
        else:
            settle(self.first_runs.executor_reported, session, event.begun_requests)

    def on_reply(self, joined: Joined, message: Any) -> None:
        if self.sessions.get(joined.executor.name) is not joined:
            return
        if joined.instance is not None:
            self.loop.settle(self.model.pool.on_reply, joined.instance, message.body)
            return
        stream: Any = SimpleNamespace(send=joined.send_batch)
        joined.instance = RemoteInstance(1, _MODEL, joined.executor.name, stream)
        self.served.life.report(joined.executor.name, LoadStatus.UP)
        self.loop.settle(self.admission.models_changed)
        self.loop.settle(self.model.pool.roster.add, joined.instance)

    def on_executor_left(self, joined: Joined) -> None:
        if self.sessions.get(joined.executor.name) is joined:
            del self.sessions[joined.executor.name]
            # What it runs may run again elsewhere, though it may be back by then.
            self.world.excused.update(joined.executor.received())
            self._lose(joined)

    def _lose(self, joined: Joined) -> None:
        instance = joined.instance
        if instance is not None:
            # What it had runs again elsewhere, though it may go on there.
            self.world.excused.update(entry.request.id for entry in instance.batches.entries())
        self.loop.settle(self.first_runs.executor_left, joined.session)
        if instance is not None:
            self.loop.settle(self.model.pool.lose_instance, instance, "an executor was lost")

    def timers(self) -> Iterator[tuple[str, Callable[[], None]]]:
        timer = self.first_runs._timer._handle
        if timer is not None:
            yield f"{self}'s grace period is over", partial(self._end_grace, timer)
        for each in self.loop.timers:
            if not each.cancelled() and "OrphanedRequest" in repr(each):
                yield f"{self} cancels an orphan", partial(self._expire, each)

    def _end_grace(self, timer: Any) -> None:
        self.blind = True
        self.loop.settle(self.loop._fire, timer)

    def _expire(self, timer: Any) -> None:
        self.world.excused.update(self.admission.orphans._requests)
        self.loop.settle(self.loop._fire, timer)

    def note_admitted(self) -> None:
        """Nothing is admitted that runs where this scheduler can ask about it."""
        entries = [entry.request.id for entry in self.model.requests.entries]
        assert len(entries) == len(set(entries)), f"{self} has a request twice"
        for request_id in set(entries) - self.open_ids:
            self.world.on_admitted(self, request_id)
        self.open_ids = set(entries)


class FirstRunsWorld(World):
    """Requests that are sent at once; the first scheduler has their model."""

    def __init__(
        self,
        parts: Parts | None = None,
        *,
        text: str = "",
        names: str = "AB",
        executors: str = "XY",
        requests: int = 2,
        losses: Iterable[str] = ("ends",),
        breaks: Iterable[str] = (),
        most: int = 1,
    ) -> None:
        """names: of the schedulers; executors: theirs. losses: of A: "ends", "is cut off". breaks:
        "link", "session", "executor"; most: how many of those.
        """
        self.parts = parts or Parts()
        self.config, self.draft = _configs_of(text)
        self.losses, self.breaks, self.left = tuple(losses), tuple(breaks), most
        self.requests = requests
        self.is_lost = False
        # What has happened that need not.
        self.disrupted: set[str] = set()
        # By request: how often it was begun. And those that may run twice at a time.
        self.begun: dict[int, int] = {}
        self.excused: set[int] = set()
        self.responses: dict[int, InferResponse] = {}
        self.first_id = 0
        self.loop = VirtualLoop("gateway")
        self.schedulers = {name: Scheduler(self, name, 1) for name in names}
        self.executors = [Executor(self, name) for name in executors]
        self.clients: dict[str, ClientLink] = {}
        self.schedulers[names[0]].own()
        self.loop.run(self._start_gateway)
        self._settle()
        for _ in range(requests):
            self.loop.settle(
                self.router.pending.infer, InferRequest(0, HEAD, [b"x"]), self._on_response
            )

    def _settle(self) -> None:
        """Everything is connected, and the model is in service."""
        for client in self.clients.values():
            client.connect()
        joined = [Joined(each, other) for each in self.executors for other in self.all_schedulers]
        links = [each.link.responses for each in self.clients.values() if each.link]
        self._deliver([*links, *(channel for each in joined for channel in each.channels)])

    @staticmethod
    def _deliver(channels: Sequence[Channel]) -> None:
        while arrivals := [each for channel in channels for each in channel.arrivals()]:
            for each in arrivals:
                each.perform()

    def _start_gateway(self) -> None:
        world = self

        class Schedulers:
            """Their addresses are their names."""

            def watch(self, on_addresses: Callable[[list[str]], None], _: object) -> None:
                on_addresses(list(world.schedulers))

            def open_link(self, address: str) -> Callable[..., ClientLink]:
                def open_link(**callbacks: Any) -> ClientLink:
                    link = world.clients[address] = ClientLink(world, address, callbacks)
                    return link

                return open_link

            def close_channel(self, address: str) -> None:
                raise AssertionError(address)

        clock: Any = self.loop
        schedulers: Any = Schedulers()
        self.router = MeshRouter(schedulers, TensorMemory(0), 1e9, IGNORE, clock)
        self.router.open()
        self.first_id = self.router.pending.last_id + 1

    def number(self, request_id: int) -> int:
        """From 0."""
        return request_id - self.first_id

    def _on_response(self, response: InferResponse) -> None:
        number = self.number(response.id)
        assert number not in self.responses, f"{number} ended twice"
        self.responses[number] = response
        if response.error is None:
            assert int(response.head) == number, f"{number} has the response of {response.head!r}"
        else:
            may_fail = self.config.at_most_once and bool(self.disrupted)
            assert may_fail, f"{number}: {response.error}"
            assert response.error.code == Aborted.code

    # ---- what holds of runs

    def on_begin(self, joined: Joined, ids: list[int]) -> None:
        for each in ids:
            number = self.number(each)
            self.begun[number] = self.begun.get(number, 0) + 1
            assert self.begun[number] == 1 or not self.config.at_most_once, f"{number} ran twice"
            others = [str(other.executor) for other in self.runs_of(each)]
            if others and each not in self.excused:
                where = f"{joined.executor} and {', '.join(others)}"
                raise AssertionError(f"{number} runs at {where} at a time")

    def runs_of(self, request_id: int) -> Iterator[Joined]:
        for executor in self.executors:
            if executor.alive:
                yield from (each for each in executor.joined if each.has(request_id))

    def on_admitted(self, scheduler: Scheduler, request_id: int) -> None:
        for each in self.runs_of(request_id):
            asked = scheduler.sessions.get(each.executor.name)
            reachable = asked is not None and asked.at_executor and asked.at_scheduler
            if reachable and not scheduler.blind and request_id not in self.excused:
                number = self.number(request_id)
                text = f"{scheduler} admits {number}, which runs at {each.executor}"
                raise AssertionError(text)
            self.excused.add(request_id)
        if scheduler.blind:
            self.excused.add(request_id)

    # ---- steps

    def actions(self) -> Iterable[Action]:
        actions = [*self._steps()]
        idle = not any(not each.disruption for each in actions)
        yield from actions
        for scheduler in self.schedulers.values():
            if scheduler.alive:
                for text, fire in scheduler.timers():
                    grace = "grace" in text
                    perform = partial(self._fire, fire, text, needed=idle and grace)
                    yield Action(
                        f"{scheduler}'s timers", text, perform, disruption=not (idle and grace)
                    )
        yield from self._disruptions()

    def _steps(self) -> Iterator[Action]:
        """What takes long comes last: models, that a scheduler sees the end of a connection, and
        what a process had sent that has ended.
        """
        for client in self.clients.values():
            yield from client.actions()
        if self.is_lost:
            yield from self._after_loss()
        links = [link for each in self.all_schedulers for link in each.links]
        for link in links:
            yield from link.actions()
        for executor in self.executors:
            yield from executor.joins()
        joined = [one for each in (*self.executors, *self.old_executors) for one in each.joined]
        joined.sort(key=lambda each: not each.scheduler.alive)
        for one in joined:
            yield from one.actions()
        for link in links:
            yield from link.slow_actions()
        for one in joined:
            yield from one.slow_actions()
        if self.is_lost and self.lost.cut_off:
            yield from self._connections_end(self.lost)

    old_schedulers: tuple[Scheduler, ...] = ()
    old_executors: tuple[Executor, ...] = ()

    @property
    def all_schedulers(self) -> tuple[Scheduler, ...]:
        return *self.schedulers.values(), *self.old_schedulers

    def _after_loss(self) -> Iterator[Action]:
        lost = self.lost
        if "B" in self.schedulers:
            if not self.schedulers["B"].owns:
                yield Action("B", f"B sees the loss of {lost}", self.schedulers["B"].take_over)
        elif self.schedulers["A"] is lost:
            yield Action("A", "A starts again", self._restart)

    @staticmethod
    def _connections_end(lost: Scheduler) -> Iterator[Action]:
        for link in lost.links:
            if not link.requests.broken:
                yield Action("network", f"{link.name} ends", link.break_off)
        for joined in lost.sessions.values():
            if not joined.events.broken:
                yield Action("network", f"{joined.name} ends", joined.break_off)

    def _restart(self) -> None:
        old = self.schedulers["A"]
        self.old_schedulers += (old,)
        self.schedulers["A"] = new = Scheduler(self, "A", 2, 2, started=False)
        new.own()

    def _disruptions(self) -> Iterator[Action]:
        scheduler = self.schedulers["A"]
        if not self.is_lost:
            for loss in self.losses:
                yield Action(
                    "A", f"A {loss}", partial(self._lose, scheduler, loss), disruption=True
                )
        if not self.left:
            return
        if "link" in self.breaks:
            for each in self.schedulers.values():
                for link in each.links:
                    if link.at_gateway and each.alive and not link.requests.broken:
                        yield self._break(f"{link.name} breaks", link.break_off)
        for executor in self.executors:
            if "executor" in self.breaks and executor.lives == 1:
                yield self._break(f"{executor} dies", partial(self._kill, executor))
            if "session" in self.breaks:
                for joined in executor.joined:
                    if joined.at_executor and joined.scheduler.alive and not joined.events.broken:
                        yield self._break(f"{joined.name} breaks", joined.break_off)

    def _break(self, text: str, perform: Callable[[], None]) -> Action:
        def break_() -> None:
            self.left -= 1
            self.disrupted.add(text)
            perform()

        return Action("network", text, break_, disruption=True)

    def _lose(self, scheduler: Scheduler, loss: str) -> None:
        self.is_lost = True
        self.lost = scheduler
        self.disrupted.add("loss")
        if loss == "ends":
            scheduler.alive = False
        else:
            scheduler.cut_off = True

    def _kill(self, executor: Executor) -> None:
        executor.alive = False
        for each in executor.joined:
            # What it has sent may arrive; it reads nothing more.
            each.commands.close()
            each.batches.close()
        self.old_executors += (executor,)
        place = self.executors.index(executor)
        self.executors[place] = Executor(self, executor.name, executor.lives + 1)

    def _fire(self, fire: Callable[[], None], text: str, *, needed: bool) -> None:
        if not needed:
            self.disrupted.add(text)
        if needed and "B" in self.schedulers:
            raise AssertionError("B waits in vain for a report")
        fire()

    # ---- what holds

    def check(self) -> None:
        for scheduler in self.schedulers.values():
            if scheduler.alive:
                scheduler.note_admitted()

    def check_at_rest(self) -> None:
        waiting = sorted(set(range(self.requests)) - set(self.responses))
        assert not waiting, f"{waiting} wait for ever"
        assert not self.router.pending.requests
        for scheduler in self.schedulers.values():
            if not scheduler.alive:
                continue
            assert not scheduler.first_runs.recalls.waiting, f"{scheduler} waits for a first run"
            for _, fire in [*scheduler.timers()]:
                fire()
            assert not len(scheduler.admission.orphans), f"{scheduler} has an orphan"
            assert not scheduler.model.dispatcher.pending, f"{scheduler} has a request"
            for link in scheduler.links:
                assert not link.at_scheduler or not link.session.pending, f"{link.name} has one"
        for executor in self.executors:
            assert not executor.runs._waiting, f"{executor} is still asked"
            assert not executor.runs._running, f"{executor} still runs something"
        if self.disrupted == {"loss"} and self.lost.alive is False:
            for number, response in self.responses.items():
                assert response.error is None or not self._kept(number), f"{number} is kept"

    def _kept(self, number: int) -> bool:
        return number % 2 == 0 and number in self.begun

    def fingerprint(self) -> Hashable:
        return (
            tuple(sorted(self.responses)),
            tuple(sorted(self.begun.items())),
            tuple(sorted(map(self.number, self.excused))),
            (self.left, self.is_lost, bool(self.disrupted), len(self.disrupted)),
            tuple(map(self._show_scheduler, self.all_schedulers)),
            tuple(map(self._show_executor, (*self.executors, *self.old_executors))),
            tuple(
                (self.number(each.request.id), str(each.route), each.request.resent)
                for each in self.router.pending.requests.values()
            ),
        )

    def _show_scheduler(self, it: Scheduler) -> Hashable:
        recalls, links = it.first_runs.recalls, tuple(map(self._show_link, it.links))
        if not it.alive:
            return str(it), links

        def name(session: Any) -> str:
            return _name(session.stream)

        return (
            (str(it), it.owns, it.blind, it.cut_off, links),
            tuple(each.name for each in it.sessions.values()),
            tuple((run, tuple(map(name, who))) for run, who in recalls._named.items()),
            (recalls._lost is None, tuple(map(name, recalls._queries.values()))),
            tuple((run, run in recalls._asked) for run in recalls._by_run),
            recalls._grace_ends_s > it.loop.now_s,
            tuple(map(_show_entry, it.model.requests.entries)),
            tuple(
                (self.number(run), orphan.on_response is None, orphan.response is None)
                for run, orphan in it.admission.orphans._requests.items()
            ),
            len(it.admission._load_queue),
        )

    def _show_link(self, it: Link) -> Hashable:
        if not (it.at_gateway or it.at_scheduler):
            return None
        pending = tuple((key, type(each).__name__) for key, each in it.session._pending.items())
        texts = tuple(map(_texts, (it.requests, it.responses)))
        return it.at_gateway, it.at_scheduler, it.requests.broken, pending, texts

    def _show_executor(self, it: Executor) -> Hashable:
        runs, claims = it.runs, it.claims._models.get(_MODEL)
        return (
            (str(it), it.alive),
            tuple(map(_show_joined, it.joined)),
            tuple((each.name, frozenset(ids)) for each, ids in it.reports._known.items()),  # type: ignore[attr-defined]
            frozenset(each.name for each in it.reports._ending),  # type: ignore[attr-defined]
            (len(it.reports._held), len(it.reports._queries)),
            tuple(tuple(ids) for ids, _ in runs.kept()),
            tuple(runs._waiting),
            None if claims is None else (_name(claims.holder), tuple(map(_name, claims.waiting))),
        )


def _name(joined: Any) -> str:
    name: str = joined.name
    return name


def _texts(channel: Channel) -> tuple[str, ...]:
    return tuple(map(str, channel.messages))


def _show_entry(entry: Entry) -> Hashable:
    return entry.request.id, entry.state, entry.request.resent


def _show_joined(it: Joined) -> Hashable:
    return (
        it.name,
        (it.at_executor, it.at_scheduler, it.events.broken),
        (it.claiming, it.serving, it.reported, it.expired),
        tuple(each.id for each in it.unread),
        it.executing and it.executing.id,
        it.instance is not None,
        tuple(map(_texts, it.channels)),
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


_BREAKS: Final = ("link", "session", "executor")
WORLDS: dict[str, Callable[[], FirstRunsWorld]] = {
    f"{name}{', at most once' if text else ''}": partial(
        FirstRunsWorld, text=text, names=names, losses=losses, breaks=breaks, most=most
    )
    for name, names, losses, breaks, most in (
        ("takeover", "AB", ("ends",), _BREAKS, 1),
        ("cut off", "AB", ("is cut off",), ("link",), 1),
        ("restart", "A", ("ends",), _BREAKS, 1),
        ("breaks", "A", (), _BREAKS, 2),
    )
    for text in ("", _AT_MOST_ONCE)
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_every_interleaving_up_to_a_bound(world: Callable[[], FirstRunsWorld]) -> None:
    found = explore(world, reorderings=3, limit=250)
    assert found.failure is None, str(found.failure)
    assert found.bound >= 1


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_random_interleavings(world: Callable[[], FirstRunsWorld]) -> None:
    found = explore_random(world, seeds=range(60), changes=6)
    assert found.failure is None, str(found.failure)


# ---- deliberate defects


class ForgetsTheHello(Recalls):
    """Forgotten ids: what an executor still runs is not known when it joins."""

    def executor_joined(
        self, executor: Hashable, runs: Iterable[int], now_s: float
    ) -> list[Decision]:
        return super().executor_joined(executor, (), now_s)


class WakesNobody(Recalls):
    """A lost wake-up: a run is named, and the request that waits for it is not asked for."""

    def _name_runs(self, executor: Hashable, runs: Iterable[int]) -> list[Decision]:
        super()._name_runs(executor, runs)
        return []


class OneReportIsEnough(Recalls):
    """A missing fence: another executor may have begun it."""

    def executor_reported(
        self, executor: Hashable, runs: Iterable[int], query: int, now_s: float
    ) -> list[Decision]:
        if query in self._queries:
            self._queries = {query: executor}
        return super().executor_reported(executor, runs, query, now_s)


class NeverAsksAgain(Recalls):
    """A lost wake-up: who was asked has left, and the request waits for its reply."""

    def executor_left(self, executor: Hashable, now_s: float) -> list[Decision]:
        asked = {run: who for run, who in self._asked.items() if who is executor}
        self._asked = {run: who for run, who in self._asked.items() if run not in asked}
        decisions = super().executor_left(executor, now_s)
        self._asked.update((run, who) for run, who in asked.items() if run in self._by_run)
        return decisions


class RepliesAtOnce(RecentRuns):
    """Wrong order: a response is recalled before there is one."""

    def recall(self, request_id: int, on_recalled: OnRecalled) -> None:
        on_recalled(self._find(request_id))


class ReportsTooEarly(BegunReports):
    """A missing fence: what lies unread in a session that is open has not begun yet."""

    def session_commanded(self, session: Hashable, scheduler: str) -> None:
        """Forget whose session it is."""


class ReportsToWhomItServes(BegunReports):
    """A lost wake-up: who has just joined gets no report."""

    def session_asks(self, session: Hashable, number: int, scheduler: str) -> list[BegunReport]:
        if session not in self._schedulers:
            return []
        return super().session_asks(session, number, scheduler)


class CancelsClaimed(GatewaySession):
    """Its link breaks once more, and the request that it had claimed is cancelled."""

    def on_down(self) -> None:
        claimed = [key for key, each in self._pending.items() if isinstance(each, OrphanedRequest)]
        for each in claimed:
            self._cancel(each)
        super().on_down()


class WaitsForTheOldLink(Admission):
    """A missing fence between two links of one gateway."""

    def end_older_link(self, request_id: int, newer: LinkSession) -> None:
        """Wait until its end is seen."""


class RunsTwice(Admission):
    """A missing fence: what may have run at most once runs again."""

    def __init__(self, catalogue: Any, *args: Any, **options: Any) -> None:
        super().__init__(catalogue, *args, **options)
        catalogue.runs_at_most_once = lambda name, version: False


_SMALL: Final = partial(FirstRunsWorld, executors="X", requests=1)


_LINKS: Final = partial(FirstRunsWorld, names="A", losses=(), breaks=["link"], most=2)
DEFECTS: dict[str, tuple[Parts, Callable[..., FirstRunsWorld]]] = {
    each.__name__: (Parts(**{part: each}), world)  # type: ignore[arg-type]
    for part, each, world in (
        ("recalls", ForgetsTheHello, WORLDS["restart, at most once"]),
        ("recalls", WakesNobody, FirstRunsWorld),
        ("recalls", OneReportIsEnough, FirstRunsWorld),
        ("recalls", NeverAsksAgain, partial(_SMALL, names="A", breaks=["executor"])),
        ("runs", RepliesAtOnce, FirstRunsWorld),
        ("reports", ReportsTooEarly, FirstRunsWorld),
        ("reports", ReportsToWhomItServes, FirstRunsWorld),
        ("session", CancelsClaimed, _LINKS),
        ("admission", WaitsForTheOldLink, _LINKS),
        ("admission", RunsTwice, partial(_LINKS, text=_AT_MOST_ONCE)),
    )
}


@pytest.mark.skipif(is_compiled(), reason="compiled classes cannot be varied")
@pytest.mark.parametrize("name", DEFECTS)
def test_deliberate_defects_are_found(name: str) -> None:
    parts, world = DEFECTS[name]
    found = explore(partial(world, parts), reorderings=3, limit=2000)
    assert found.failure is not None
    assert isinstance(found.failure.error, AssertionError), found.failure
