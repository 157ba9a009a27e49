"""Control plane: answers KServe's own messages from the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from nereid.core.errors import InvalidArgument, NereidError
from nereid.core.methods import SCHEDULER
from nereid.model_config import metadata
from nereid.observability.metrics_page import Page
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid.rpc import RpcError, Status
from nereid_scheduler.placement.models.catalogue import OnDemand, Ready, parse_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from google.protobuf.message import Message

    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.pages.counts_report import CountsReport
    from nereid_scheduler.pages.mesh_settings import MeshSettings
    from nereid_scheduler.pages.metrics import SchedulerMetrics
    from nereid_scheduler.placement.loads.readiness import Readiness
    from nereid_scheduler.placement.models.catalogue import Catalogue, Resolution, ServedVersion


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
        ensure: Callable[[str, str], Awaitable[None]],
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
        """Return the handlers by path."""
        kserve, nereid = kserve_pb2, nereid_pb
        responders: dict[str, tuple[type[Message], Callable[[Any], Awaitable[Message]]]] = {
            "ModelMetadata": (kserve.ModelMetadataRequest, self._metadata),
            "ModelConfig": (kserve.ModelConfigRequest, self._config),
            "ServerReady": (kserve.ServerReadyRequest, self._server_ready),
            "ModelReady": (kserve.ModelReadyRequest, self._model_ready),
            "TraceSetting": (kserve.TraceSettingRequest, self._set_traces),
            "LogSettings": (kserve.LogSettingsRequest, self._set_logs),
            "DrainExecutor": (nereid.DrainExecutorRequest, self._drain),
            "ModelStatistics": (kserve.ModelStatisticsRequest, self._statistics),
            "Metrics": (nereid.MetricsRequest, self._write_metrics),
            "Counts": (nereid.CountsRequest, self._count),
            "Facts": (nereid.FactsRequest, self._read_facts),
        }
        return {SCHEDULER + name: control_handler(*pair) for name, pair in responders.items()}

    async def _count(self, request: nereid_pb.CountsRequest) -> Message:
        return self._counts.respond(request)

    async def _read_facts(self, request: nereid_pb.FactsRequest) -> Message:
        return self._facts(request)

    async def _server_ready(self, _: kserve_pb2.ServerReadyRequest) -> Message:
        catalogue = self._catalogue
        ready = catalogue.all_serving() if self._strict else catalogue.all_settled()
        if ready and self._strict and not self.stopping:
            ready = await self._readiness.are_ready(catalogue.versions())
        return kserve_pb2.ServerReadyResponse(ready=ready and not self.stopping)

    async def _model_ready(self, request: kserve_pb2.ModelReadyRequest) -> Message:
        found = self._catalogue.resolve(request.name, request.version)
        ready = _loads_when_requested(found)
        if isinstance(found, Ready) and found.served.life.serving:
            ready = await self._readiness.are_ready([found.served])
        return kserve_pb2.ModelReadyResponse(ready=ready)

    async def _find(
        self, request: kserve_pb2.ModelMetadataRequest | kserve_pb2.ModelConfigRequest
    ) -> ServedVersion:
        """Return a version to describe. Clients ask for it before requests load the model."""
        await self._ensure(request.name, request.version)
        return self._catalogue.require(request.name, request.version)

    async def _metadata(self, request: kserve_pb2.ModelMetadataRequest) -> Message:
        served = await self._find(request)
        ready = [served] if request.version else self._catalogue.ready_versions(request.name)
        return metadata(served.ready_runtime.config, [version.number for version in ready])

    async def _config(self, request: kserve_pb2.ModelConfigRequest) -> Message:
        served = await self._find(request)
        model = self._catalogue.model(served.name)
        sources = {} if model is None else model.config_sources
        return kserve_pb2.ModelConfigResponse(config=served.shown, sources=sources)

    async def _statistics(self, request: kserve_pb2.ModelStatisticsRequest) -> Message:
        name, version, number = request.name, request.version, parse_version(request.version)
        response = kserve_pb2.ModelStatisticsResponse()
        if not name:
            models = self._catalogue.models()
            ready = [served for model in models for served in model.ready_versions()]
            _add_statistics(response, ready, self._memory_of)
            return response
        ready = self._catalogue.ready_versions(name)
        found = self._catalogue.resolve(name, version)
        if isinstance(found, OnDemand) and not ready and found.model.error is None:
            # The model's next request will load it: all counts are zero.
            for known in found.model.found.versions:
                if not version or number == known:
                    response.model_stats.add(name=found.model.found.plain_name, version=str(known))
            return response
        if not ready:
            raise InvalidArgument(f"requested model '{name}' is not available")
        if version:
            ready = [served for served in ready if served.number == number]
        if not ready:
            raise InvalidArgument(f"requested model version is not available for model '{name}'")
        _add_statistics(response, ready, self._memory_of)
        return response

    def _is_ready_somewhere(self, model: str) -> bool:
        found = self._catalogue.resolve(model, "")
        if isinstance(found, Ready) or _loads_when_requested(found):
            return True
        return self._is_elsewhere(model)

    async def _set_traces(self, request: kserve_pb2.TraceSettingRequest) -> Message:
        model = request.model_name
        if model and not self._is_ready_somewhere(model):
            raise InvalidArgument(f"Request for unknown model : {model}")
        changes = {name: list(value.value) for name, value in request.settings.items()}
        response = kserve_pb2.TraceSettingResponse()
        for name, values in (await self._mesh_settings.trace(model, changes)).items():
            response.settings[name].value[:] = values
        return response

    async def _set_logs(self, request: kserve_pb2.LogSettingsRequest) -> Message:
        changes = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            changes[name] = None if choice is None else getattr(setting, choice)
        response = kserve_pb2.LogSettingsResponse()
        for name, value in (await self._mesh_settings.log(changes)).items():
            _set_log_setting(response.settings[name], value)
        return response

    async def _write_metrics(self, request: nereid_pb.MetricsRequest) -> Message:
        page = Page(exemplars=request.with_exemplars)
        self._metrics.write_mesh(
            page,
            cpu=not request.without_cpu,
            gpu=not request.without_gpu,
            models=frozenset(request.models),
            histograms=not request.without_histograms,
        )
        return nereid_pb.MetricsResponse(exposition=page.encode())


def _loads_when_requested(found: Resolution) -> bool:
    """Return whether a request for the model would first load it, and then be executed."""
    return isinstance(found, OnDemand) and found.model.error is None


def _add_statistics(
    response: kserve_pb2.ModelStatisticsResponse,
    ready: Iterable[ServedVersion],
    memory_of: Callable[[ServedVersion], Mapping[str, int]] | None,
) -> None:
    """Add statistics of versions. memory_of: `None` leaves out memory, as in Triton."""
    for served in ready:
        runtime = served.ready_runtime
        message = runtime.statistics.to_proto(runtime.name, str(runtime.number))
        sizes = {} if memory_of is None else memory_of(served)
        for device, size in sorted(sizes.items()):
            kind, _, device_id = device.partition(" ")
            usage = message.memory_usage.add(type=kind.upper(), byte_size=size)
            usage.id = int(device_id) if device_id.isdigit() else 0
        response.model_stats.append(message)


def _set_log_setting(
    setting: kserve_pb2.LogSettingsResponse.SettingValue, value: bool | int | str
) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    else:
        setting.string_param = value


def control_handler(
    request_type: type[Message], respond: Callable[[Any], Awaitable[Message | bytes]]
) -> Respond:
    """Return a handler of messages of this type.

    `respond` returns a message, or the bytes of one that is large. It may raise NereidError.
    """

    async def handle(message: bytes) -> bytes:
        try:
            response = await respond(request_type.FromString(message))
        except DecodeError as error:
            raise RpcError(Status.INTERNAL, "Unable to parse request") from error
        except NereidError as error:
            raise RpcError(Status(error.code), error.message) from error
        return response if isinstance(response, bytes) else response.SerializeToString()

    return handle
