"""The control plane: KServe's own messages, answered from the catalogue.

Translation only; the one place where errors become RPC statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from nereid.errors import NereidError, Unimplemented
from nereid.metrics import Page
from nereid.model_config import metadata
from nereid.paths import SCHEDULER
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid.rpc import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from nereid.rpc import Call, UnaryHandler
    from services.scheduler.catalogue import Catalogue
    from services.scheduler.metrics import SchedulerMetrics


class Control:
    """Answers to the control calls. strict: readiness by Triton's strict rule."""

    def __init__(self, catalogue: Catalogue, metrics: SchedulerMetrics, *, strict: bool) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._strict = strict
        self.stopping = False

    def handlers(self) -> dict[str, UnaryHandler]:
        """The calls by path."""
        pb = kserve_pb2
        return {
            SCHEDULER + "ServerReady": _handler(pb.ServerReadyRequest, self._server_ready),
            SCHEDULER + "ModelReady": _handler(pb.ModelReadyRequest, self._model_ready),
            SCHEDULER + "ModelMetadata": _handler(pb.ModelMetadataRequest, self._metadata),
            SCHEDULER + "ModelConfig": _handler(pb.ModelConfigRequest, self._config),
            SCHEDULER + "ModelStatistics": _handler(pb.ModelStatisticsRequest, self._statistics),
            SCHEDULER + "RepositoryIndex": _handler(pb.RepositoryIndexRequest, self._index),
            SCHEDULER + "Metrics": _handler(nereid_pb.MetricsRequest, self._write_metrics),
        }

    def _server_ready(self, _: kserve_pb2.ServerReadyRequest) -> Message:
        catalogue = self._catalogue
        ready = catalogue.all_serving() if self._strict else catalogue.all_settled()
        return kserve_pb2.ServerReadyResponse(ready=ready and not self.stopping)

    def _model_ready(self, request: kserve_pb2.ModelReadyRequest) -> Message:
        ready = self._catalogue.is_ready(request.name, request.version)
        return kserve_pb2.ModelReadyResponse(ready=ready)

    def _metadata(self, request: kserve_pb2.ModelMetadataRequest) -> Message:
        served = self._catalogue.find(request.name, request.version)
        assert served.runtime is not None, "ready, but not in service"  # noqa: S101
        ready = self._catalogue.ready_versions(request.name)
        return metadata(served.runtime.config, [each.number for each in ready])

    def _config(self, request: kserve_pb2.ModelConfigRequest) -> Message:
        served = self._catalogue.find(request.name, request.version)
        return kserve_pb2.ModelConfigResponse(config=served.shown)

    def _statistics(self, request: kserve_pb2.ModelStatisticsRequest) -> Message:
        return self._catalogue.statistics(request.name, request.version)

    def _index(self, request: kserve_pb2.RepositoryIndexRequest) -> Message:
        if request.repository_name:
            raise Unimplemented("'repository_name' specification is not supported")
        return self._catalogue.index(ready_only=request.ready)

    def _write_metrics(self, request: nereid_pb.MetricsRequest) -> Message:
        page = Page()
        self._metrics.write_mesh(page, cpu=not request.without_cpu, gpu=not request.without_gpu)
        return nereid_pb.MetricsResponse(exposition=page.encode())


def _handler(request_type: type[Message], answer: Callable[[Any], Message]) -> UnaryHandler:
    def handle(call: Call, message: bytes) -> None:
        try:
            response = answer(request_type.FromString(message))
        except DecodeError as error:
            raise RpcError(Status.INTERNAL, "the request cannot be read") from error
        except NereidError as error:
            raise RpcError(Status(error.code), error.message) from error
        call.reply(response.SerializeToString())

    return handle
