"""Control plane: answers KServe's own messages from the catalogue."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from nereid.core.errors import InvalidArgument, NereidError
from nereid.core.methods import SCHEDULER
from nereid.model_config import metadata
from nereid.observability.metrics_page import Page
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid.rpc import RpcError, Status
from nereid_scheduler.placement.models.catalogue import parse_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from google.protobuf.message import Message

    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.pages.counts_report import CountsReport
    from nereid_scheduler.pages.mesh_settings import MeshSettings
    from nereid_scheduler.pages.metrics import SchedulerMetrics
    from nereid_scheduler.placement.loads.readiness import Readiness
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion


class Control:
    """Handlers of the control calls."""

    def __init__(  # noqa: PLR0913 (one source of responses each)
        self,
        catalogue: Catalogue,
        metrics: SchedulerMetrics,
        mesh_settings: MeshSettings,
        readiness: Readiness,
        facts: Callable[[nereid_pb.FactsRequest], Message],
        *,
        counts: CountsReport,
        drain: Callable[[nereid_pb.DrainExecutorRequest], Awaitable[Message]],
        strict: bool,
        is_elsewhere: Callable[[str], bool],
        ensure: Callable[[str, int], Awaitable[None]] | None = None,
        memory_of: Callable[[ServedVersion], Mapping[str, int]] | None = None,
    ) -> None:
        self._ensure = ensure
        self._memory_of = memory_of
        self._is_elsewhere = is_elsewhere
        self._catalogue = catalogue
        self._metrics = metrics
        self._counts = counts
        self._mesh_settings = mesh_settings
        self._readiness = readiness
        self._facts = facts
        self._drain = drain
        self._strict = strict
        self.stopping = False

    def handlers(self) -> dict[str, Respond]:
        """Return the functions that respond to calls, by path."""
        pb = kserve_pb2
        if self._ensure is None:
            descriptions = {
                SCHEDULER + "ModelMetadata": _handler(pb.ModelMetadataRequest, self._metadata),
                SCHEDULER + "ModelConfig": _handler(pb.ModelConfigRequest, self._config),
            }
        else:
            descriptions = {
                SCHEDULER + "ModelMetadata": _async_handler(
                    pb.ModelMetadataRequest, partial(self._describe, self._ensure, self._metadata)
                ),
                SCHEDULER + "ModelConfig": _async_handler(
                    pb.ModelConfigRequest, partial(self._describe, self._ensure, self._config)
                ),
            }
        return descriptions | {
            SCHEDULER + "ServerReady": _async_handler(pb.ServerReadyRequest, self._server_ready),
            SCHEDULER + "ModelReady": _async_handler(pb.ModelReadyRequest, self._model_ready),
            SCHEDULER + "TraceSetting": _async_handler(pb.TraceSettingRequest, self._trace_setting),
            SCHEDULER + "LogSettings": _async_handler(pb.LogSettingsRequest, self._log_settings),
            SCHEDULER + "DrainExecutor": _async_handler(
                nereid_pb.DrainExecutorRequest, self._drain
            ),
            SCHEDULER + "ModelStatistics": _handler(pb.ModelStatisticsRequest, self._statistics),
            SCHEDULER + "Metrics": _handler(nereid_pb.MetricsRequest, self._write_metrics),
            SCHEDULER + "Counts": _handler(nereid_pb.CountsRequest, self._counts.respond),
            SCHEDULER + "Facts": _handler(nereid_pb.FactsRequest, self._facts),
        }

    async def _server_ready(self, _: kserve_pb2.ServerReadyRequest) -> Message:
        catalogue = self._catalogue
        ready = catalogue.all_serving() if self._strict else catalogue.all_settled()
        if ready and self._strict and not self.stopping:
            ready = await self._readiness.are_ready(catalogue.versions())
        return kserve_pb2.ServerReadyResponse(ready=ready and not self.stopping)

    async def _model_ready(self, request: kserve_pb2.ModelReadyRequest) -> Message:
        name, version = request.name, request.version
        ready = self._catalogue.is_ready(name, version)
        if ready and not self._catalogue.is_out(name, version):
            ready = await self._readiness.are_ready([self._catalogue.find(name, version)])
        return kserve_pb2.ModelReadyResponse(ready=ready)

    async def _describe(
        self,
        ensure: Callable[[str, int], Awaitable[None]],
        respond: Callable[[Any], Message],
        request: kserve_pb2.ModelMetadataRequest | kserve_pb2.ModelConfigRequest,
    ) -> Message:
        """Return a model's description. Clients ask for it before requests load the model."""
        await ensure(request.name, parse_version(request.version))
        return respond(request)

    def _metadata(self, request: kserve_pb2.ModelMetadataRequest) -> Message:
        served = self._catalogue.find(request.name, request.version)
        assert served.runtime is not None, "ready, but not in service"
        ready = (
            [served.runtime] if request.version else self._catalogue.ready_versions(request.name)
        )
        return metadata(served.runtime.config, [version.number for version in ready])

    def _config(self, request: kserve_pb2.ModelConfigRequest) -> Message:
        served = self._catalogue.find(request.name, request.version)
        return kserve_pb2.ModelConfigResponse(config=served.shown)

    def _statistics(self, request: kserve_pb2.ModelStatisticsRequest) -> Message:
        return self._catalogue.statistics(request.name, request.version, self._memory_of)

    def _is_ready_somewhere(self, model: str) -> bool:
        if self._catalogue.ready_versions(model) or self._catalogue.is_out(model, ""):
            return True
        return self._is_elsewhere(model)

    async def _trace_setting(self, request: kserve_pb2.TraceSettingRequest) -> Message:
        model = request.model_name
        if model and not self._is_ready_somewhere(model):
            raise InvalidArgument(f"Request for unknown model : {model}")
        changes = {name: list(value.value) for name, value in request.settings.items()}
        response = kserve_pb2.TraceSettingResponse()
        for name, values in (await self._mesh_settings.trace(model, changes)).items():
            response.settings[name].value[:] = values
        return response

    async def _log_settings(self, request: kserve_pb2.LogSettingsRequest) -> Message:
        changes = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            changes[name] = None if choice is None else getattr(setting, choice)
        response = kserve_pb2.LogSettingsResponse()
        for name, value in (await self._mesh_settings.log(changes)).items():
            _set_log_setting(response.settings[name], value)
        return response

    def _write_metrics(self, request: nereid_pb.MetricsRequest) -> Message:
        page = Page(exemplars=request.with_exemplars)
        self._metrics.write_mesh(
            page,
            cpu=not request.without_cpu,
            gpu=not request.without_gpu,
            models=frozenset(request.models),
        )
        return nereid_pb.MetricsResponse(exposition=page.encode())


def _set_log_setting(
    setting: kserve_pb2.LogSettingsResponse.SettingValue, value: bool | int | str
) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    else:
        setting.string_param = value


def _handler(request_type: type[Message], wire_response: Callable[[Any], Message]) -> Respond:
    async def handle(message: bytes) -> bytes:
        with _errors_as_statuses():
            response = wire_response(request_type.FromString(message))
        return response.SerializeToString()

    return handle


def _async_handler(
    request_type: type[Message], wire_response: Callable[[Any], Awaitable[Message]]
) -> Respond:
    async def handle(message: bytes) -> bytes:
        with _errors_as_statuses():
            response = await wire_response(request_type.FromString(message))
        return response.SerializeToString()

    return handle


@contextmanager
def _errors_as_statuses() -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise RpcError(Status.INTERNAL, "Unable to parse request") from error
    except NereidError as error:
        raise RpcError(Status(error.code), error.message) from error
