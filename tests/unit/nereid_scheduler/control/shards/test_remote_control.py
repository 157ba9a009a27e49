"""Which schedulers a control call goes to, and what becomes of their responses."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nereid.core.methods import FORWARDED_KEY, SCHEDULER
from nereid.pb import kserve_pb2 as pb
from nereid.pb import nereid_pb2 as nereid_pb
from nereid.rpc import Handlers, RpcError, Status
from nereid_scheduler.control.shards.members.membership import Peer
from nereid_scheduler.control.shards.remote_control import RemoteControl
from tests.support.rpc.local_channel import LocalChannel

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nereid.rpc import AsyncUnaryHandler, Call
    from nereid_scheduler.control.shards.remote_control import Respond

METHODS = (
    "ModelReady", "RepositoryModelLoad", "RepositoryModelUnload", "ModelStatistics", "TraceSetting",
    "LogSettings", "ServerReady", "RepositoryIndex", "Metrics", "Counts",
)  # fmt: skip


class World:
    """Schedulers a, b and c; calls come to a."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        # By scheduler and method: its response, or its error; else an empty message.
        self.responses: dict[tuple[str, str], Message | RpcError] = {}
        self.channels = {each: LocalChannel(self._handlers(each)) for each in "bc"}
        self.owner: str | None = "a"
        self.named = True
        self.learnt: list[str] = []
        membership = SimpleNamespace(
            members=frozenset("abc"),
            lost_models={},
            peers={each: Peer(each, 1, models=frozenset({f"of_{each}"})) for each in "bc"},
        )
        self.shard = SimpleNamespace(name="a", membership=membership, channel_to=self.channels.get)
        moves = SimpleNamespace(
            location=lambda _: self.owner,
            all_expected_served=lambda: self.named,
            plain_name=lambda name: name,
            learn_model=self._learn,
            loading=lambda _: nullcontext(),
        )
        self.control = RemoteControl(
            cast("Any", self.shard),
            cast("Any", moves),
            {SCHEDULER + each: self._respond("a", each) for each in METHODS},
            1.0,
        )
        self.control.started.set()
        self.channel = LocalChannel(Handlers(async_unary=self.control.handlers()))

    async def _learn(self, name: str, _: object) -> None:
        self.learnt.append(name)
        if name == "unreadable":
            raise OSError("no disk")

    def _handlers(self, scheduler: str) -> Handlers:
        def handler(method: str) -> AsyncUnaryHandler:
            respond = self._respond(scheduler, method)

            async def handle(call: Call, message: bytes) -> bytes:
                assert call.get(FORWARDED_KEY) is not None
                return await respond(message)

            return handle

        return Handlers(async_unary={SCHEDULER + each: handler(each) for each in METHODS})

    def _respond(self, scheduler: str, method: str) -> Respond:
        async def respond(_: bytes) -> bytes:
            self.calls.append((scheduler, method))
            response = self.responses.get((scheduler, method), pb.ServerReadyResponse())
            if isinstance(response, RpcError):
                raise response
            return response.SerializeToString()

        return respond

    async def call(self, method: str, request: Message, *, forwarded: bool = False) -> bytes:
        metadata = ((FORWARDED_KEY, "1"),) if forwarded else ()
        return await self.channel.unary(
            SCHEDULER + method, request.SerializeToString(), metadata=metadata
        )


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ModelReady", pb.ModelReadyRequest(name="m")),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m")),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m")),
        ("ModelStatistics", pb.ModelStatisticsRequest(name="m")),
    ],
)
async def test_a_call_about_a_model_goes_to_who_has_it(method: str, request_: Message) -> None:
    it = World()
    for owner in ("a", "b", None):
        it.owner = owner
        await it.call(method, request_)
    assert it.calls == [("a", method), ("b", method), ("a", method)]
    # What was passed on goes no further.
    it.owner = "b"
    await it.call(method, request_, forwarded=True)
    assert it.calls[-1] == ("a", method)
    del it.channels["b"]
    with pytest.raises(RpcError, match="scheduler 'b', which has model 'm', cannot be reached"):
        await it.call(method, request_)


async def test_a_load_of_what_cannot_be_read_reports_it_itself() -> None:
    it = World()
    await it.call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="unreadable"))
    assert it.calls == [("a", "RepositoryModelLoad")]
    assert set(it.learnt) == {"unreadable"}


async def test_a_request_that_cannot_be_parsed_is_an_error() -> None:
    with pytest.raises(RpcError, match="Unable to parse request"):
        await World().channel.unary(SCHEDULER + "ModelReady", b"\xff")


async def test_the_mesh_is_ready_when_all_are() -> None:
    it = World()

    async def ready(*, forwarded: bool = False) -> bool:
        reply = await it.call("ServerReady", pb.ServerReadyRequest(), forwarded=forwarded)
        return pb.ServerReadyResponse.FromString(reply).ready

    for each in "ab":
        it.responses[each, "ServerReady"] = pb.ServerReadyResponse(ready=True)
    assert not await ready()
    it.responses["c", "ServerReady"] = pb.ServerReadyResponse(ready=True)
    assert await ready()
    assert await ready(forwarded=True)
    it.named = False
    assert not await ready()
    # Nobody has a lost scheduler's models yet.
    it.shard.membership.lost_models = {"d": frozenset({"m"})}
    assert not await ready(forwarded=True)
    it.control.started.clear()
    assert not await ready()


async def test_calls_wait_for_the_start() -> None:
    it = World()
    it.control.started.clear()
    call = asyncio.create_task(it.call("ModelReady", pb.ModelReadyRequest(name="m")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert it.calls == []
    it.control.started.set()
    await call
    assert it.calls == [("a", "ModelReady")]


async def test_statistics_and_the_index_are_everyones() -> None:
    it = World()
    for each in "abc":
        statistics = pb.ModelStatisticsResponse()
        statistics.model_stats.add(name=f"of_{each}")
        it.responses[each, "ModelStatistics"] = statistics
        index = pb.RepositoryIndexResponse()
        index.models.add(name=f"of_{each}", state="READY")
        it.responses[each, "RepositoryIndex"] = index
    it.responses["c", "RepositoryIndex"] = RpcError(Status.UNAVAILABLE, "silent")
    reply = await it.call("ModelStatistics", pb.ModelStatisticsRequest())
    merged = pb.ModelStatisticsResponse.FromString(reply)
    assert [each.name for each in merged.model_stats] == ["of_a", "of_b", "of_c"]
    reply = await it.call("RepositoryIndex", pb.RepositoryIndexRequest())
    shown = {each.name: each.state for each in pb.RepositoryIndexResponse.FromString(reply).models}
    assert shown == {"of_a": "READY", "of_b": "READY", "of_c": "UNAVAILABLE"}
    it.responses["a", "RepositoryIndex"] = RpcError(Status.INTERNAL, "no disk")
    with pytest.raises(RpcError, match="no disk"):
        await it.call("RepositoryIndex", pb.RepositoryIndexRequest())


async def test_counts_are_those_of_all_that_respond(caplog: pytest.LogCaptureFixture) -> None:
    it = World()
    for number, each in enumerate("abc", 1):
        counts = nereid_pb.SchedulerCounts(scheduler=number)
        it.responses[each, "Counts"] = nereid_pb.CountsResponse(schedulers=[counts])

    async def schedulers() -> list[int]:
        response = await it.call("Counts", nereid_pb.CountsRequest())
        found = nereid_pb.CountsResponse.FromString(response).schedulers
        return [each.scheduler for each in found]

    assert await schedulers() == [1, 2, 3]
    it.responses["b", "Counts"] = RpcError(Status.UNAVAILABLE, "it hangs")
    # Of an older release, which is no failure.
    it.responses["c", "Counts"] = RpcError(Status.UNIMPLEMENTED, "unknown")
    assert await schedulers() == [1]
    assert "scheduler 'b' failed Counts: it hangs" in caplog.text
    assert "'c'" not in caplog.text


async def test_changes_of_settings_are_made_by_one_first_and_then_by_all() -> None:
    it = World()
    it.owner = "b"
    await it.call("TraceSetting", pb.TraceSettingRequest(model_name="m"))
    assert it.calls == [("b", "TraceSetting")]
    it.calls.clear()
    change = pb.TraceSettingRequest(model_name="m")
    change.settings["trace_rate"].value.append("1")
    await it.call("TraceSetting", change)
    assert it.calls[0] == ("b", "TraceSetting")
    assert sorted(it.calls[1:]) == [("a", "TraceSetting"), ("c", "TraceSetting")]
    it.calls.clear()
    it.responses["b", "TraceSetting"] = RpcError(Status.INVALID_ARGUMENT, "bad")
    with pytest.raises(RpcError, match="bad"):
        await it.call("TraceSetting", change)
    assert it.calls == [("b", "TraceSetting")]
    it.calls.clear()
    await it.call("LogSettings", pb.LogSettingsRequest())
    assert it.calls == [("a", "LogSettings")]
