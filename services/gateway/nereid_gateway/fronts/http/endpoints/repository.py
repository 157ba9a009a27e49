"""Model repository extension over HTTP: translates JSON to the scheduler's calls and back."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal, InvalidArgument
from nereid.pb import kserve_pb2
from nereid_gateway.core import request_head
from nereid_gateway.core.access.principal import as_requested_by
from nereid_gateway.fronts.http.endpoints.control_bodies import read_body
from nereid_gateway.fronts.http.json import control_documents, parser

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

_CONFIG: Final = "config"
_FILE: Final = "file:"
_UNLOAD_DEPENDENTS: Final = "unload_dependents"
_VERSION: Final = "version"


class RepositoryEndpoints:
    """Handlers of the extension's routes."""

    def __init__(self, control: Control, data_plane: DataPlane) -> None:
        self._control = control
        self._data_plane = data_plane

    async def index(self, call: HttpCall, _route: Route) -> None:
        """Respond with the index of the repository."""
        ready = False
        if call.body:
            ready = await read_body(self._data_plane, call, _wants_ready)
        request = kserve_pb2.RepositoryIndexRequest(ready=ready)
        call.respond(
            200, (await self._control.read_for_whole_mesh("RepositoryIndex", request, _index),)
        )

    async def load(self, call: HttpCall, route: Route) -> None:
        """Load a model. The body may have a configuration and files."""
        request = await read_body(
            self._data_plane, call, _load_request, route.model, route.repository
        )
        await self._control.load(as_requested_by(call.sender, request))
        call.respond(200, ())

    async def unload(self, call: HttpCall, route: Route) -> None:
        """Unload a model, or the version that the body names.

        If the body asks for it, unload the models that depend on it as well.
        """
        message = await read_body(
            self._data_plane, call, _unload_request, route.model, route.repository
        )
        await self._control.call_bytes(
            "RepositoryModelUnload", as_requested_by(call.sender, message)
        )
        call.respond(200, ())


def _index(response: bytes) -> bytes:
    return control_documents.repository_index(
        kserve_pb2.RepositoryIndexResponse.FromString(response)
    )


def _wants_ready(body: bytes) -> bool:
    document = parser.parse(body)
    if type(document) is not dict or "ready" not in document:
        return False
    if type(document["ready"]) is not bool:
        raise InvalidArgument("Invalid value for 'ready': expected a boolean")
    return document["ready"]


def _load_request(body: bytes, model: str, repository: str) -> bytes:
    request = kserve_pb2.RepositoryModelLoadRequest(model_name=model, repository_name=repository)
    parameters = _parameters(parser.parse(body) if body else None)
    request_head.check_count("parameters", len(parameters), model)
    for name, value in parameters.items():
        if name == _VERSION:
            request.parameters[name].string_param = _version(value)
            continue
        text = parser.as_string(value)
        if name == _CONFIG:
            request.parameters[name].string_param = text
        elif name.startswith(_FILE):
            key = parser.printable(name)
            request.parameters[key].bytes_param = _decode_base64(name, value)
        else:
            raise Internal("unexpected error on creating Triton parameter")
    return request.SerializeToString()


def _parameters(document: Any) -> dict[str, Any]:
    if type(document) is not dict or "parameters" not in document:
        return {}
    parameters = document["parameters"]
    if type(parameters) is not dict:
        raise Internal("attempt to get members for non-object")
    return parameters


def _decode_base64(name: str, value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"the value of load parameter '{name}' is not base64") from error


def _version(value: Any) -> str:
    """Return a version as the scheduler expects it, which checks it."""
    if type(value) not in (int, str):
        raise InvalidArgument(f"Invalid value for '{_VERSION}': expected a number or string")
    return parser.printable(str(value))


def _unload_request(body: bytes, model: str, repository: str) -> bytes:
    request = kserve_pb2.RepositoryModelUnloadRequest(model_name=model, repository_name=repository)
    parameters: dict[str, Any] = {}
    # Any other content is ignored.
    with suppress(Internal):
        parameters = _parameters(parser.parse(body))
    if parameters.get(_UNLOAD_DEPENDENTS) is True:
        request.parameters[_UNLOAD_DEPENDENTS].bool_param = True
    if _VERSION in parameters:
        request.parameters[_VERSION].string_param = _version(parameters[_VERSION])
    return request.SerializeToString()
