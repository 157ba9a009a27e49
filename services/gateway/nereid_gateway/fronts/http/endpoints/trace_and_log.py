"""Trace and logging extensions over HTTP. The scheduler owns the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import InvalidArgument
from nereid.observability.logging import LOG_FORMATS
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.endpoints.control_bodies import read_body
from nereid_gateway.fronts.http.json import parser
from nereid_gateway.plane.decoding.limits import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

_LEVEL: Final = "trace_level"
_TRACE_FILE: Final = "trace_file"
_TRACE_SETTINGS: Final = (_TRACE_FILE, _LEVEL, "trace_rate", "trace_count", "log_frequency")
# Order of the response.
_TRACE_ORDER: Final = (
    *(_LEVEL, "trace_rate", "trace_count", "log_frequency", _TRACE_FILE, "trace_mode"),
    *("url", "resource", "bsp_max_export_batch_size", "bsp_schedule_delay", "bsp_max_queue_size"),
)
_COUNT: Final = "Unable to parse 'trace_count'. Expecting value >= -1, got:"
# Order of the response and of the checks.
_LOG_ORDER: Final = (
    *("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"),
)
_UINT32: Final = (1 << 32) - 1


class TraceAndLogEndpoints:
    """Handlers of the two extensions' routes."""

    def __init__(self, control: Control, data_plane: DataPlane) -> None:
        self._control = control
        self._data_plane = data_plane

    async def trace_setting(self, call: HttpCall, route: Route) -> None:
        """Respond with the trace settings of one or all models. On POST, change them first."""
        request = kserve_pb2.TraceSettingRequest(model_name=route.model)
        if call.method == b"POST":
            # An unknown model is reported before any error in the body.
            await self._call_trace_setting(request)
            request = kserve_pb2.TraceSettingRequest.FromString(
                await read_body(self._data_plane, call, _trace_request, route.model)
            )
        try:
            response = await self._call_trace_setting(request)
        except InvalidArgument as error:
            # On Triton, this text lacks a space over HTTP.
            message = error.message.replace(_COUNT + " ", _COUNT)
            raise InvalidArgument(message) from error
        values = {name: list(setting.value) for name, setting in response.settings.items()}
        settings = {
            name: values[name] if name == _LEVEL else values[name][0]
            for name in _TRACE_ORDER
            if name in values
        }
        call.respond(200, (orjson.dumps(settings),))

    async def _call_trace_setting(
        self, request: kserve_pb2.TraceSettingRequest
    ) -> kserve_pb2.TraceSettingResponse:
        return await self._control.call("TraceSetting", request, kserve_pb2.TraceSettingResponse)

    async def logging(self, call: HttpCall, _route: Route) -> None:
        """Respond with the log settings. On POST, change them first."""
        request = kserve_pb2.LogSettingsRequest()
        unknown_format: str | None = None
        if call.method == b"POST":
            settings_given, unknown_format = await read_body(self._data_plane, call, _log_request)
            request = kserve_pb2.LogSettingsRequest.FromString(settings_given)
        if unknown_format is not None:
            call.fail(503, f"invalid argument for --log_format, got: {unknown_format}")
            return
        response = await self._control.call("LogSettings", request, kserve_pb2.LogSettingsResponse)
        settings = {
            name: getattr(setting, setting.WhichOneof("parameter_choice") or "string_param")
            for name, setting in response.settings.items()
        }
        call.respond(200, (orjson.dumps({name: settings[name] for name in _LOG_ORDER}),))


def _trace_request(body: bytes, model: str) -> bytes:
    request = kserve_pb2.TraceSettingRequest(model_name=model)
    document = parser.parse(body)
    members = document if type(document) is dict else {}
    for name in _TRACE_SETTINGS:
        if name in members:
            _write_trace(request, name, members[name])
    return _limited(request.SerializeToString())


def _log_request(body: bytes) -> tuple[bytes, str | None]:
    request = kserve_pb2.LogSettingsRequest()
    document = parser.parse(body)
    unknown_format = _write_log(request, document if type(document) is dict else {})
    return _limited(request.SerializeToString()), unknown_format


def _limited(request: bytes) -> bytes:
    if len(request) > MAX_CONTROL_BYTES:
        raise InvalidArgument(f"the settings take more than {MAX_CONTROL_BYTES} bytes")
    return request


def _write_trace(request: kserve_pb2.TraceSettingRequest, name: str, value: Any) -> None:
    """Set a trace setting in the request. Null clears the setting."""
    values: list[str] = []
    if name == _LEVEL:
        if value is not None:
            parser.as_array(value)
        if value == []:
            return
        values = [parser.as_string(level) for level in value or ()]
    elif value is not None and name != _TRACE_FILE:
        values = [parser.as_string(value)]
    request.settings[name].value[:] = values


def _write_log(request: kserve_pb2.LogSettingsRequest, members: dict[str, Any]) -> str | None:
    for name in _LOG_ORDER:
        value = members.get(name)
        if value is None:
            continue
        setting = request.settings[name]
        if name == "log_file":
            # The scheduler refuses every log file, so the name does not matter.
            setting.string_param = value if type(value) is str else "?"
        elif name == "log_format":
            setting.string_param = parser.as_string(value)
        elif name == "log_verbose_level":
            if parser.as_unsigned(value) > _UINT32:
                parser.refuse_kind("unsigned-integer")
            setting.uint32_param = value
        else:
            setting.bool_param = parser.as_boolean(value)
    given = members.get("log_format")
    return given if given is not None and given not in LOG_FORMATS else None
