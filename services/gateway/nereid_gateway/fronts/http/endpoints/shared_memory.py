"""Clients' shared memory over HTTP: the routes that register and list regions."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import orjson

from nereid.core.errors import Internal, InvalidArgument, NereidError, http_status
from nereid_gateway.fronts.http.endpoints.control_bodies import read_body
from nereid_gateway.fronts.http.json import parser
from nereid_gateway.plane.client_shm.cuda import HANDLE_BYTES, open_cuda
from nereid_gateway.plane.client_shm.regions import CUDA, SYSTEM, Registration
from nereid_gateway.plane.client_shm.system import open_system

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.client_shm.regions import Regions
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall


class SharedMemoryEndpoints:
    """Handlers of the routes for system and CUDA memory."""

    def __init__(self, regions: Regions, data_plane: DataPlane) -> None:
        self._regions = regions
        self._data_plane = data_plane

    def status(self, call: HttpCall, route: Route) -> None:
        """Respond with all registered regions of a kind, or with one of them."""
        try:
            registrations = self._regions.status(route.memory_kind, route.region)
        except NereidError as error:
            call.fail(http_status(error.code), error.message)
        else:
            call.respond(
                200, (orjson.dumps([_document(registration) for registration in registrations]),)
            )

    def unregister(self, call: HttpCall, route: Route) -> None:
        """Unregister one region, or all regions of a kind."""
        try:
            self._regions.unregister(route.memory_kind, route.region)
        except NereidError as error:
            call.fail(http_status(error.code), error.message)
        else:
            call.respond(200, ())

    async def register(self, call: HttpCall, route: Route) -> None:
        """Register a region with the memory that the body describes."""
        kind, name = route.memory_kind, route.region
        self._regions.check_allowed()
        if not name:
            raise InvalidArgument(
                f"'region name' is necessary to register {kind} shared memory region"
            )
        registration = await read_body(self._data_plane, call, _registration, kind, name)
        if kind == SYSTEM:
            self._regions.register(registration, lambda: open_system(registration))
        else:
            self._regions.register(
                registration, lambda: open_cuda(registration, registration.handle)
            )
        call.respond(200, ())


def _registration(body: bytes, kind: str, name: str) -> Registration:
    document = parser.parse(body)
    members = document if type(document) is dict else {}
    if kind == SYSTEM:
        return _system_registration(name, members)
    return _cuda_registration(name, members)


def _system_registration(name: str, members: dict[str, Any]) -> Registration:
    _require(members, "key")
    key = parser.as_string(members["key"])
    offset = parser.as_unsigned(members.get("offset", 0))
    _require(members, "byte_size")
    return Registration(SYSTEM, name, parser.as_unsigned(members["byte_size"]), key, offset)


def _cuda_registration(name: str, members: dict[str, Any]) -> Registration:
    _require(members, "raw_handle")
    encoded = parser.as_string(_member(members["raw_handle"], "b64"))
    size_bytes = parser.as_unsigned(_member(members, "byte_size"))
    device_id = parser.as_unsigned(_member(members, "device_id"))
    try:
        handle = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        handle = b""
    if len(handle) != HANDLE_BYTES:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return Registration(CUDA, name, size_bytes, device_id=device_id, handle=handle)


def _require(members: dict[str, Any], field: str) -> None:
    if field not in members:
        raise InvalidArgument(f"Shared memory register request has no '{field}' field")


def _member(document: Any, field: str) -> Any:
    # Triton's text for these members does not begin with the field, unlike that of parser.member.
    if type(document) is not dict or field not in document:
        raise Internal(f"attempt to access non-existing object member '{field}'")
    return document[field]


def _document(registration: Registration) -> dict[str, str | int]:
    if registration.kind == SYSTEM:
        place: dict[str, str | int] = {"key": registration.key, "offset": registration.offset}
    else:
        place = {"device_id": registration.device_id}
    return {"name": registration.name, **place, "byte_size": registration.size_bytes}
