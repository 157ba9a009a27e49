"""Shared memory over HTTP: the routes that register regions, and what a tensor says of them."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

import orjson

from nereid.core.errors import Internal, InvalidArgument, NereidError, http_status
from nereid.services.gateway.client_shm.cuda import HANDLE_BYTES, open_cuda
from nereid.services.gateway.client_shm.regions import CUDA, SYSTEM, Range, Registration
from nereid.services.gateway.client_shm.system import open_system
from nereid.services.gateway.http.json import parser
from nereid.services.gateway.http.routes import Kind, Route

if TYPE_CHECKING:
    from nereid.services.gateway.client_shm.regions import Regions
    from nereid.services.gateway.http.server.call import HttpCall

_UINT64_END: Final = 1 << 64


def tensor_range(parameters: dict[str, Any]) -> Range:
    """The range that a tensor's parameters name; its region is among them.

    Raises:
        Internal: a parameter is of the wrong kind.
    """
    region = parser.string(parameters, "shared_memory_region")
    offset = parser.unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset")
    size_bytes = parser.unsigned(
        parameters.get("shared_memory_byte_size", 0), "shared_memory_byte_size"
    )
    return Range(region, offset, size_bytes)


def response(call: HttpCall, route: Route, regions: Regions) -> None:
    """Answer a call of one of the routes; route names a kind of memory, and maybe a region."""
    kind, name = route.name, route.version
    body: tuple[bytes, ...] = ()
    try:
        if route.kind is Kind.SHARED_MEMORY_STATUS:
            body = (orjson.dumps([_told(each) for each in regions.status(kind, name)]),)
        elif route.kind is Kind.SHARED_MEMORY_UNREGISTER:
            regions.unregister(kind, name)
        else:
            regions.check_allowed()
            _register(kind, name, call.body, regions)
    except NereidError as error:
        call.fail(http_status(error.code), error.message)
    else:
        call.respond(200, body)


def _register(kind: str, name: str, body: bytes, regions: Regions) -> None:
    if not name:
        raise InvalidArgument(f"'region name' is necessary to register {kind} shared memory region")
    parsed = parser.parse(body)
    members = parsed if type(parsed) is dict else {}
    if kind == SYSTEM:
        about = _system(name, members)
        regions.register(about, lambda: open_system(about))
    else:
        about, handle = _cuda(name, members)
        regions.register(about, lambda: open_cuda(about, handle))


def _system(name: str, members: dict[str, Any]) -> Registration:
    _require(members, "key")
    key = _string(members["key"])
    offset = _unsigned(members.get("offset", 0))
    _require(members, "byte_size")
    return Registration(SYSTEM, name, _unsigned(members["byte_size"]), key, offset)


def _cuda(name: str, members: dict[str, Any]) -> tuple[Registration, bytes]:
    _require(members, "raw_handle")
    encoded = _string(_member(members["raw_handle"], "b64"))
    size_bytes = _unsigned(_member(members, "byte_size"))
    device_id = _unsigned(_member(members, "device_id"))
    try:
        handle = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        handle = b""
    if len(handle) != HANDLE_BYTES:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return Registration(CUDA, name, size_bytes, device_id=device_id), handle


def _told(about: Registration) -> dict[str, str | int]:
    if about.kind == SYSTEM:
        place: dict[str, str | int] = {"key": about.key, "offset": about.offset}
    else:
        place = {"device_id": about.device_id}
    return {"name": about.name, **place, "byte_size": about.size_bytes}


# --- members, with Triton's texts: here they do not tell the field --------------------------------


def _require(members: dict[str, Any], field: str) -> None:
    if field not in members:
        raise InvalidArgument(f"Shared memory register request has no '{field}' field")


def _member(document: Any, field: str) -> Any:
    if type(document) is not dict or field not in document:
        raise Internal(f"attempt to access non-existing object member '{field}'")
    return document[field]


def _string(value: Any) -> str:
    if type(value) is not str:
        raise Internal("attempt to access JSON non-string as string")
    return parser.printable(value)


def _unsigned(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _UINT64_END:
        raise Internal("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value
