"""A gateway on real ports in front of a small scheduler in the same process.

The scheduler's model "echo" returns its inputs as outputs, "hold" responds when the test says so,
"fail" fails after it was accepted; any other is unknown.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nereid.core.errors import InvalidArgument, NereidError, NotFound
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    InferRequest,
    InferResponse,
    ToScheduler,
)
from nereid.mesh_routing.access import OneScheduler
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Call, Handlers, RpcError, Status, memory_links
from nereid_gateway.service import GatewayService, joined
from nereid_gateway.settings import GatewaySettings
from tests.support.rpc.local_channel import LocalChannel

FP32_TYPE = 11


def _unknown(name: str) -> NotFound:
    return NotFound(f"Request for unknown model: '{name}' is not found", accepted=True)


class EchoScheduler:
    """Answers on a link, and control calls."""

    def __init__(self) -> None:
        self.ready = True
        self.models: tuple[str, ...] = ("echo", "hold", "fail")
        # Responses to ModelText by model, which have files.
        self.texts: dict[str, pb.ModelTextResponse] = {}
        self.text_requests: list[pb.ModelTextRequest] = []
        self.received: list[InferRequest] = []
        self.held: asyncio.Queue[InferRequest] = asyncio.Queue()
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.flows: asyncio.Queue[FlowControl] = asyncio.Queue()
        self.link: Any = None
        # Names of those that may be drained, and of those that were, by which calls.
        self.executors = ["executor-0"]
        self.drained: list[str] = []
        self.drains: list[pb.DrainExecutorRequest] = []

    def on_items(self, items: list[ToScheduler]) -> None:
        for item in items:
            if isinstance(item, Cancel):
                self.cancelled.put_nowait(item.id)
                continue
            if isinstance(item, FlowControl):
                self.flows.put_nowait(item)
                continue
            assert isinstance(item, InferRequest), "nothing was lent that could come back"
            self.received.append(item)
            name = kserve_pb2.ModelInferRequest.FromString(item.head).model_name
            if name == "hold" and item.error_status is None:
                self.held.put_nowait(item)
            else:
                self.link.send(self.wire_response(item, name))

    def wire_response(self, item: InferRequest, name: str) -> InferResponse:
        if name not in self.models:
            error = _unknown(name)
            return InferResponse(
                item.id, error=ErrorStatus(error.code, error.message, error.accepted)
            )
        if item.error_status is not None:
            return InferResponse(item.id, error=item.error_status)
        if name == "fail":
            head = kserve_pb2.ModelInferResponse(model_name=name).SerializeToString()
            return InferResponse(
                item.id, head, error=ErrorStatus(13, "asked to fail", accepted=True)
            )
        return self.echo(item)

    def echo(self, item: InferRequest) -> InferResponse:
        request = kserve_pb2.ModelInferRequest.FromString(item.head)
        head = kserve_pb2.ModelInferResponse(model_name=request.model_name, model_version="1")
        wanted = {each.name for each in request.outputs}
        payloads = []
        for tensor, payload in zip(request.inputs, item.payloads, strict=True):
            name = tensor.name.replace("INPUT", "OUTPUT")
            if not wanted or name in wanted:
                head.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
                payloads.append(payload)
        return InferResponse(item.id, head.SerializeToString(), payloads)

    async def next_held(self) -> InferRequest:
        return await asyncio.wait_for(self.held.get(), 5)

    # --- control --------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        responses: dict[str, Callable[[Any], Any]] = {
            "ServerReady": lambda _: kserve_pb2.ServerReadyResponse(ready=self.ready),
            "ModelReady": lambda asked: kserve_pb2.ModelReadyResponse(
                ready=asked.name in self.models
            ),
            "ModelMetadata": self._metadata,
            "ModelConfig": lambda asked: kserve_pb2.ModelConfigResponse(config=self._config(asked)),
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "DrainExecutor": self._drain,
            "ModelText": self._text,
        }
        return Handlers(
            async_unary={
                f"/nereid.v1.Scheduler/{method}": self._handler(method, wire_response)
                for method, wire_response in responses.items()
            }
        )

    def _handler(self, method: str, wire_response: Callable[[Any], Any]) -> Any:
        name = f"{method}Request"
        request_class = getattr(kserve_pb2, name, None) or getattr(pb, name)

        async def handle(_call: Call, message: bytes) -> bytes:
            try:
                response: bytes = wire_response(
                    request_class.FromString(message)
                ).SerializeToString()
            except NereidError as error:
                raise RpcError(Status(error.code), error.message) from error
            return response

        return handle

    def _known(self, asked: Any) -> None:
        if asked.version and not asked.version.isdigit():
            raise InvalidArgument(f"failed to get model version from '{asked.version}'")
        if asked.name not in self.models:
            raise _unknown(asked.name)

    def _metadata(self, asked: Any) -> kserve_pb2.ModelMetadataResponse:
        self._known(asked)
        response = kserve_pb2.ModelMetadataResponse(
            name=asked.name, versions=["1"], platform="onnxruntime_onnx"
        )
        response.inputs.add(name="INPUT0", datatype="FP32", shape=[-1])
        response.outputs.add(name="OUTPUT0", datatype="FP32", shape=[-1])
        return response

    def _config(self, asked: Any) -> model_config_pb2.ModelConfig:
        self._known(asked)
        config = model_config_pb2.ModelConfig(name=asked.name, backend="onnxruntime")
        config.input.add(name="INPUT0", data_type=FP32_TYPE, dims=[-1])
        config.output.add(name="OUTPUT0", data_type=FP32_TYPE, dims=[-1])
        return config

    def _text(self, asked: pb.ModelTextRequest) -> pb.ModelTextResponse:
        self.text_requests.append(asked)
        if not asked.name:
            return pb.ModelTextResponse(names=self.texts)
        if asked.name not in self.texts:
            raise _unknown(asked.name)
        response = pb.ModelTextResponse()
        response.CopyFrom(self.texts[asked.name])
        if response.digest == asked.known_digest:
            response.files.clear()
            response.ClearField("config")
        return response

    def _statistics(self, asked: Any) -> kserve_pb2.ModelStatisticsResponse:
        if asked.name and asked.name not in self.models:
            raise InvalidArgument(f"requested model '{asked.name}' is not available")
        response = kserve_pb2.ModelStatisticsResponse()
        for name in (asked.name,) if asked.name else self.models:
            each = response.model_stats.add(name=name, version="1", inference_count=7)
            each.inference_stats.success.count = 7
            each.batch_stats.add(batch_size=1).compute_infer.ns = 5
        return response

    def _drain(self, asked: pb.DrainExecutorRequest) -> pb.DrainExecutorResponse:
        if asked.name not in self.executors:
            raise NotFound(f"no executor '{asked.name}' has joined")
        self.drained.append(asked.name)
        self.drains.append(asked)
        return pb.DrainExecutorResponse()

    def _index(self, asked: Any) -> kserve_pb2.RepositoryIndexResponse:
        if asked.repository_name:
            raise RpcError(Status.UNIMPLEMENTED, "'repository_name' specification is not supported")
        response = kserve_pb2.RepositoryIndexResponse()
        for name in self.models:
            response.models.add(name=name, version="1", state="READY")
        if not asked.ready:
            response.models.add(name="broken", version="1", state="UNAVAILABLE", reason="no good")
            response.models.add(name="never")
        return response


class GatewaySite:
    """The gateway under test, its addresses and the scheduler behind it."""

    def __init__(self, service: GatewayService, scheduler: EchoScheduler) -> None:
        self.service = service
        self.scheduler = scheduler
        assert service.http_address is not None
        assert service.grpc_address is not None
        self.http = service.http_address
        self.grpc = service.grpc_address


def settings(**changes: Any) -> GatewaySettings:
    local = {
        "http_address": "127.0.0.1",
        "http_port": 0,
        "grpc_address": "127.0.0.1",
        "metrics_port": 0,
    }
    return GatewaySettings(**{**local, "grpc_port": 0, "exit_timeout_secs": 1.0, **changes})


@asynccontextmanager
async def gateway_site(**changes: Any) -> AsyncIterator[GatewaySite]:
    scheduler = EchoScheduler()
    mine, its = memory_links()
    scheduler.link = its
    its.on_items = scheduler.on_items
    channel = LocalChannel(scheduler.handlers())
    service = GatewayService(settings(**changes), mesh=OneScheduler(joined(mine), channel))
    await service.start()
    its.send(CachedModels(()))
    try:
        yield GatewaySite(service, scheduler)
    finally:
        await service.drain(0.2)
        await channel.close()


def serve_metrics_page(
    monkeypatch: pytest.MonkeyPatch, page: Callable[[EchoScheduler, bytes], bytes]
) -> None:
    """Have schedulers constructed from here on respond to requests for metrics with `page`."""
    others = EchoScheduler.handlers

    def handlers(self: EchoScheduler) -> Handlers:
        async def metrics(_call: Call, message: bytes) -> bytes:
            return pb.MetricsResponse(exposition=page(self, message)).SerializeToString()

        table = others(self)
        return dataclasses.replace(
            table, async_unary={**table.async_unary, "/nereid.v1.Scheduler/Metrics": metrics}
        )

    monkeypatch.setattr(EchoScheduler, "handlers", handlers)
