"""Handles control calls in a mesh with several schedulers, where a call may go to any of them.

A call about one model is passed on once. A call about all models is made to all schedulers. If one
does not respond, the mesh is not ready, and the index shows its models as unavailable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.methods import FORWARDED_KEY, SCHEDULER
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid.rpc import RpcError, Status
from nereid_scheduler.control.shards.members.merged_responses import (
    merge_facts,
    merge_indexes,
    merge_metrics,
    merge_statistics,
)
from nereid_scheduler.core.models.overrides import read_override

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from google.protobuf.message import Message

    from nereid.rpc import AsyncUnaryHandler, Call, Channel
    from nereid_scheduler.control.shards.model_moves import ModelMoves
    from nereid_scheduler.control.shards.shard import Shard

    # Responds to a call for this scheduler's models; raises RpcError.
    Respond = Callable[[bytes], Awaitable[bytes]]

_log = logging.getLogger(__name__)

_FORWARDED: Final = ((FORWARDED_KEY, "1"),)


class _OneModel(NamedTuple):
    request_type: type[Message]
    field: str


_SERVER_READY: Final = SCHEDULER + "ServerReady"
_LOAD: Final = SCHEDULER + "RepositoryModelLoad"
_UNLOAD: Final = SCHEDULER + "RepositoryModelUnload"
_STATISTICS: Final = SCHEDULER + "ModelStatistics"
_TEXT: Final = SCHEDULER + "ModelText"
_COUNTS: Final = SCHEDULER + "Counts"
# Short: gateways show no counter before they have counts. A scheduler that hangs is left out.
_COUNTS_LIMIT_S: Final = 1.0
_TRACE: Final = SCHEDULER + "TraceSetting"
_ONE_MODEL: Final = {
    SCHEDULER + "ModelReady": _OneModel(kserve_pb2.ModelReadyRequest, "name"),
    SCHEDULER + "ModelMetadata": _OneModel(kserve_pb2.ModelMetadataRequest, "name"),
    SCHEDULER + "ModelConfig": _OneModel(kserve_pb2.ModelConfigRequest, "name"),
    _UNLOAD: _OneModel(kserve_pb2.RepositoryModelUnloadRequest, "model_name"),
    SCHEDULER + "ModelTraffic": _OneModel(nereid_pb.ModelTrafficRequest, "model"),
    SCHEDULER + "ModelRollout": _OneModel(nereid_pb.ModelRolloutRequest, "model"),
}


class RemoteControl:
    """Handlers of control calls for one of several schedulers."""

    def __init__(
        self,
        shard: Shard,
        moves: ModelMoves,
        own: Mapping[str, Respond],
        reply_limit_s: float,
    ) -> None:
        self._reply_limit_s = reply_limit_s
        self._shard = shard
        self._moves = moves
        # Set when this scheduler has started. Calls wait for it.
        self.started = asyncio.Event()
        self._own = own
        self._merging: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {
            _LOAD: self._load,
            _STATISTICS: self._statistics,
            _TEXT: self._text,
            _TRACE: self._trace_setting,
            SCHEDULER + "LogSettings": self._log_settings,
            _SERVER_READY: self._server_ready,
            SCHEDULER + "RepositoryIndex": self._index,
            SCHEDULER + "Metrics": self._metrics,
            _COUNTS: self._counts,
            SCHEDULER + "Facts": self._facts,
            SCHEDULER + "DrainExecutor": self._drain_executor,
        }

    def handlers(self) -> dict[str, AsyncUnaryHandler]:
        """Return the handlers by path."""
        return {path: self._handler(path) for path in (*_ONE_MODEL, *self._merging)}

    def _handler(self, path: str) -> AsyncUnaryHandler:
        merging = self._merging.get(path)

        async def handle(call: Call, message: bytes) -> bytes:
            # Accepting the call shows that this scheduler is live, however long models take.
            call.accept()
            if path == _SERVER_READY and not self.started.is_set():
                return kserve_pb2.ServerReadyResponse().SerializeToString()
            await self.started.wait()
            if call.get(FORWARDED_KEY) is not None:
                if path == _LOAD:
                    return await self._load_here(message)
                if path == _SERVER_READY and self._is_takeover_due():
                    return kserve_pb2.ServerReadyResponse().SerializeToString()
                return await self._own[path](message)
            if merging is not None:
                return await merging(path, message)
            request_type, field = _ONE_MODEL[path]
            request = _parsed(request_type, message)
            return await self._forward(path, getattr(request, field), message, call.deadline)

        return handle

    def _is_takeover_due(self) -> bool:
        """Return whether a lost scheduler's models seem to be at no other scheduler yet."""
        return bool(self._shard.membership.lost_models) and not self._moves.all_expected_served()

    def _channel_to(self, model: str) -> Channel | None:
        name = self._moves.location(model)
        if name is None or name == self._shard.name:
            return None
        channel = self._shard.channel_to(name)
        if channel is None:
            text = f"scheduler '{name}', which has model '{model}', cannot be reached"
            raise RpcError(Status.UNAVAILABLE, text)
        return channel

    async def _forward(
        self, path: str, model: str, message: bytes, deadline: float | None = None
    ) -> bytes:
        channel = self._channel_to(model)
        if channel is None:
            return await self._own[path](message)
        timeout_s = None if deadline is None else max(0.001, deadline - time.monotonic())
        return await channel.unary(path, message, metadata=_FORWARDED, timeout_s=timeout_s)

    async def _load(self, path: str, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.RepositoryModelLoadRequest, message)
        await self._learn_composition(request)
        channel = self._channel_to(request.model_name)
        if channel is None:
            return await self._load_here(message)
        return await channel.unary(path, message, metadata=_FORWARDED)

    async def _load_here(self, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.RepositoryModelLoadRequest, message)
        await self._learn_composition(request)
        with self._moves.loading(request.model_name):
            return await self._own[_LOAD](message)

    async def _learn_composition(self, request: kserve_pb2.RepositoryModelLoadRequest) -> None:
        try:
            override = read_override(request.parameters)
            await self._moves.learn_model(request.model_name, override)
        except (NereidError, OSError):
            # The load itself will report what is wrong.
            return

    async def _statistics(self, path: str, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.ModelStatisticsRequest, message)
        if request.name:
            return await self._forward(path, request.name, message)
        responses = _responses(await self._call_all(path, message))
        parsed = map(kserve_pb2.ModelStatisticsResponse.FromString, responses)
        return merge_statistics(parsed).SerializeToString()

    async def _text(self, path: str, message: bytes) -> bytes:
        request = _parsed(nereid_pb.ModelTextRequest, message)
        if request.name:
            return await self._forward(path, request.name, message)
        responses = _responses(await self._call_all(path, message))
        names = {
            name
            for response in responses
            for name in nereid_pb.ModelTextResponse.FromString(response).names
        }
        return nereid_pb.ModelTextResponse(names=sorted(names)).SerializeToString()

    async def _trace_setting(self, path: str, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.TraceSettingRequest, message)
        model = request.model_name
        # Only the scheduler that has the model knows whether it is ready: call that one first.
        first = (self._moves.location(model) if model else None) or self._shard.name
        return await self._change(path, message, first, changes=bool(request.settings))

    async def _log_settings(self, path: str, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.LogSettingsRequest, message)
        return await self._change(path, message, self._shard.name, changes=bool(request.settings))

    async def _change(self, path: str, message: bytes, first: str, *, changes: bool) -> bytes:
        """Call `first`; if the call changes settings, call the others; return first's response."""
        response = await self._call(first, path, message)
        if isinstance(response, RpcError):
            raise response
        if changes:
            names = {self._shard.name, *self._shard.membership.members} - {first}
            await asyncio.gather(*(self._call(name, path, message) for name in names))
        return response

    async def _server_ready(self, path: str, message: bytes) -> bytes:
        ready = self._moves.all_expected_served()
        if ready:
            responses = (await self._call_all(path, message)).values()
            ready = all(
                isinstance(response, bytes)
                and kserve_pb2.ServerReadyResponse.FromString(response).ready
                for response in responses
            )
        return kserve_pb2.ServerReadyResponse(ready=ready).SerializeToString()

    async def _index(self, path: str, message: bytes) -> bytes:
        request = _parsed(kserve_pb2.RepositoryIndexRequest, message)
        responses = await self._call_all(path, message)
        own = responses[self._shard.name]
        if isinstance(own, RpcError):
            raise own
        membership = self._shard.membership
        models = dict(membership.lost_models)
        for name, response in responses.items():
            if isinstance(response, RpcError) and name in membership.peers:
                models[name] = membership.peers[name].models
        silent = {
            scheduler: [self._moves.plain_name(name) for name in sorted(names)]
            for scheduler, names in models.items()
        }
        indexes = [*map(kserve_pb2.RepositoryIndexResponse.FromString, _responses(responses))]
        return merge_indexes(indexes, silent, ready_only=request.ready).SerializeToString()

    async def _metrics(self, path: str, message: bytes) -> bytes:
        # Every page has the devices of all executors. This scheduler's page comes first and counts.
        responses = await self._call_all(path, message)
        pages = {
            name: nereid_pb.MetricsResponse.FromString(response).exposition
            for name, response in responses.items()
            if isinstance(response, bytes)
        }
        return nereid_pb.MetricsResponse(exposition=merge_metrics(pages)).SerializeToString()

    async def _counts(self, path: str, message: bytes) -> bytes:
        # Concatenated protobuf messages parse as one merged message.
        limit_s = min(self._reply_limit_s, _COUNTS_LIMIT_S)
        return b"".join(_responses(await self._call_all(path, message, limit_s)))

    async def _facts(self, _path: str, message: bytes) -> bytes:
        return (await self.read_facts(message)).SerializeToString()

    async def read_facts(self, message: bytes = b"") -> nereid_pb.FactsResponse:
        """Return the facts of all schedulers. `message` is a FactsRequest."""
        responses = await self._call_all(SCHEDULER + "Facts", message)
        silent = [name for name, response in responses.items() if isinstance(response, RpcError)]
        parsed = map(nereid_pb.FactsResponse.FromString, _responses(responses))
        return merge_facts(parsed, silent)

    async def _drain_executor(self, path: str, message: bytes) -> bytes:
        # The first scheduler by name decides, so that the second of two concurrent calls is decided
        # with knowledge of the first. The executor leaves all schedulers if one asks it to.
        outcome: bytes | RpcError = b""
        for name in sorted({*self._shard.membership.members, self._shard.name}):
            outcome = await self._call(name, path, message)
            if isinstance(outcome, bytes) or outcome.status is not Status.NOT_FOUND:
                break
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    async def _call_all(
        self, path: str, message: bytes, limit_s: float | None = None
    ) -> dict[str, bytes | RpcError]:
        others = sorted(self._shard.membership.members - {self._shard.name})
        names = [self._shard.name, *others]
        outcomes = await asyncio.gather(
            *(self._call(name, path, message, limit_s) for name in names)
        )
        return dict(zip(names, outcomes, strict=True))

    async def _call(
        self, name: str, path: str, message: bytes, limit_s: float | None = None
    ) -> bytes | RpcError:
        if name == self._shard.name:
            return await _outcome(self._own[path](message))
        channel = self._shard.channel_to(name)
        if channel is None:
            return RpcError(Status.UNAVAILABLE, f"scheduler '{name}' cannot be reached")
        call = channel.unary(
            path, message, metadata=_FORWARDED, timeout_s=limit_s or self._reply_limit_s
        )
        outcome = await _outcome(call)
        if isinstance(outcome, RpcError) and outcome.status is not Status.UNIMPLEMENTED:
            method = path.rpartition("/")[2]
            _log.warning("scheduler '%s' failed %s: %s", name, method, outcome.message)
        return outcome


async def _outcome(response: Awaitable[bytes]) -> bytes | RpcError:
    try:
        return await response
    except RpcError as error:
        return error


def _responses(outcomes: Mapping[str, bytes | RpcError]) -> list[bytes]:
    return [outcome for outcome in outcomes.values() if isinstance(outcome, bytes)]


def _parsed(request_type: type[Message], message: bytes) -> Any:
    try:
        return request_type.FromString(message)
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "Unable to parse request") from error
