"""The model repository extension over HTTP: JSON to the scheduler's calls and back.

Which models are loaded is the scheduler's business; what is checked here is what only HTTP tells in
its own words, which are Triton's.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal, InvalidArgument
from nereid.pb import kserve_pb2
from nereid.services.gateway.http.json import control_documents, parser
from nereid.services.gateway.http.routes import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid.services.gateway.control import Control
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.server.call import HttpCall

_CONFIG: Final = "config"
_FILE: Final = "file:"
_UNLOAD_DEPENDENTS: Final = "unload_dependents"


class HttpRepository:
    """The extension's handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def handlers(self) -> dict[Kind, Callable[[HttpCall, Route], Coroutine[Any, Any, None]]]:
        """By route."""
        return {
            Kind.REPOSITORY_INDEX: self._index,
            Kind.REPOSITORY_LOAD: self._load,
            Kind.REPOSITORY_UNLOAD: self._unload,
        }

    async def _index(self, call: HttpCall, _route: Route) -> None:
        ready = False
        if call.body:
            document = parser.parse(call.body)
            if type(document) is dict and "ready" in document:
                if type(document["ready"]) is not bool:
                    raise InvalidArgument("Invalid value for 'ready': expected a boolean")
                ready = document["ready"]
        response = await self._control.call(
            "RepositoryIndex",
            kserve_pb2.RepositoryIndexRequest(ready=ready),
            kserve_pb2.RepositoryIndexResponse,
        )
        call.respond(200, (control_documents.repository_index(response),))

    async def _load(self, call: HttpCall, route: Route) -> None:
        request = kserve_pb2.RepositoryModelLoadRequest(
            model_name=route.name, repository_name=route.version
        )
        document = parser.parse(call.body) if call.body else None
        for name, value in _parameters(document).items():
            if type(value) is not str:
                raise Internal("attempt to access JSON non-string as string")
            if name == _CONFIG:
                request.parameters[name].string_param = parser.printable(value)
            elif name.startswith(_FILE):
                key = parser.printable(name)
                request.parameters[key].bytes_param = _decoded(name, value)
            else:
                raise Internal("unexpected error on creating Triton parameter")
        await self._control.load(request)
        call.respond(200, ())

    async def _unload(self, call: HttpCall, route: Route) -> None:
        request = kserve_pb2.RepositoryModelUnloadRequest(
            model_name=route.name, repository_name=route.version
        )
        if _asks_for_dependents(call.body):
            request.parameters[_UNLOAD_DEPENDENTS].bool_param = True
        await self._control.call(
            "RepositoryModelUnload", request, kserve_pb2.RepositoryModelUnloadResponse
        )
        call.respond(200, ())


def _parameters(document: Any) -> dict[str, Any]:
    if type(document) is not dict or "parameters" not in document:
        return {}
    parameters = document["parameters"]
    if type(parameters) is not dict:
        raise Internal("attempt to get members for non-object")
    return parameters


def _decoded(name: str, value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"the value of load parameter '{name}' is not base64") from error


def _asks_for_dependents(body: bytes) -> bool:
    """Whatever else the body of an unload holds, JSON or not, is passed over."""
    try:
        return _parameters(parser.parse(body)).get(_UNLOAD_DEPENDENTS) is True
    except Internal:
        return False
