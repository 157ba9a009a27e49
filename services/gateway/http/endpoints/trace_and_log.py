"""The trace and logging extensions over HTTP: JSON to the scheduler's settings and back.

The settings are the scheduler's; what is checked here is what only HTTP tells in its own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import Internal, InvalidArgument
from nereid.observability.logging import LOG_FORMATS
from nereid.pb import kserve_pb2
from nereid.services.gateway.http.json import parser
from nereid.services.gateway.http.routes import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid.services.gateway.control import Control
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.server.call import HttpCall

_LEVEL: Final = "trace_level"
_TRACE_FILE: Final = "trace_file"
_TRACE_SETTINGS: Final = (_TRACE_FILE, _LEVEL, "trace_rate", "trace_count", "log_frequency")
# In the order in which they are told.
_TRACE_ORDER: Final = (
    *(_LEVEL, "trace_rate", "trace_count", "log_frequency", _TRACE_FILE, "trace_mode"),
    *("url", "resource", "bsp_max_export_batch_size", "bsp_schedule_delay", "bsp_max_queue_size"),
)
_COUNT: Final = "Unable to parse 'trace_count'. Expecting value >= -1, got:"


class HttpSettings:
    """The two extensions' handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def handlers(self) -> dict[Kind, Callable[[HttpCall, Route], Coroutine[Any, Any, None]]]:
        """By route."""
        return {Kind.TRACE_SETTING: self._trace, Kind.LOGGING: self._log}

    async def _trace(self, call: HttpCall, route: Route) -> None:
        request = kserve_pb2.TraceSettingRequest(model_name=route.name)
        if call.method == b"POST":
            # The model comes first: what is wrong with the rest is told of a known one alone.
            await self._ask_trace(request)
            document = parser.parse(call.body)
            members = document if type(document) is dict else {}
            for name in _TRACE_SETTINGS:
                if name in members:
                    _write_trace(request, name, members[name])
        try:
            response = await self._ask_trace(request)
        except InvalidArgument as error:
            # Over HTTP this one text lacks a space.
            message = error.message.replace(_COUNT + " ", _COUNT)
            raise InvalidArgument(message) from error
        values = {name: list(setting.value) for name, setting in response.settings.items()}
        told = {
            name: values[name] if name == _LEVEL else values[name][0]
            for name in _TRACE_ORDER
            if name in values
        }
        call.respond(200, (orjson.dumps(told),))

    async def _ask_trace(
        self, request: kserve_pb2.TraceSettingRequest
    ) -> kserve_pb2.TraceSettingResponse:
        return await self._control.call("TraceSetting", request, kserve_pb2.TraceSettingResponse)

    async def _log(self, call: HttpCall, _route: Route) -> None:
        request = kserve_pb2.LogSettingsRequest()
        refused_format: str | None = None
        if call.method == b"POST":
            document = parser.parse(call.body)
            members = document if type(document) is dict else {}
            refused_format = _write_log(request, members)
        if refused_format is not None:
            call.fail(503, f"invalid argument for --log_format, got: {refused_format}")
            return
        response = await self._control.call("LogSettings", request, kserve_pb2.LogSettingsResponse)
        told = {
            name: getattr(setting, setting.WhichOneof("parameter_choice") or "string_param")
            for name, setting in response.settings.items()
        }
        call.respond(200, (orjson.dumps({name: told[name] for name in _LOG_ORDER}),))


def _write_trace(request: kserve_pb2.TraceSettingRequest, name: str, value: Any) -> None:
    """One member of the JSON document; null clears a setting."""
    values: list[str] = []
    if name == _LEVEL:
        if value is not None and type(value) is not list:
            raise Internal("attempt to access JSON non-array as array")
        if value == []:
            return
        values = [_text(each) for each in value or ()]
    elif value is not None and name != _TRACE_FILE:
        values = [_text(value)]
    request.settings[name].value[:] = values


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Internal("attempt to access JSON non-string as string")
    return parser.printable(value)


# In the order in which they are told; the field that each one's value comes in, and its kind.
_LOG_ORDER: Final = (
    "log_file",
    "log_info",
    "log_warning",
    "log_error",
    "log_verbose_level",
    "log_format",
)
_UINT32: Final = (1 << 32) - 1


def _write_log(request: kserve_pb2.LogSettingsRequest, members: dict[str, Any]) -> str | None:
    """Fill request from a JSON document; a log format that is none is returned."""
    for name in _LOG_ORDER:
        if name not in members:
            continue
        value = members[name]
        if value is None:
            continue
        setting = request.settings[name]
        if name == "log_file":
            # Any file is refused, whatever names it.
            setting.string_param = value if type(value) is str else "?"
        elif name == "log_format":
            setting.string_param = _text(value)
        elif name == "log_verbose_level":
            if type(value) is not int or not 0 <= value <= _UINT32:
                raise Internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
            setting.uint32_param = value
        else:
            if type(value) is not bool:
                raise Internal("attempt to access JSON non-boolean as boolean")
            setting.bool_param = value
    given = members.get("log_format")
    return given if given is not None and given not in LOG_FORMATS else None
