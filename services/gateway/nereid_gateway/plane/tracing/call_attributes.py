"""Attributes of a sampled root span that describe its call, named as OpenTelemetry names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import http_status
from nereid_gateway.core import routes

if TYPE_CHECKING:
    from nereid.observability.tracing import Attribute
    from nereid.rpc.grpc.call import Call
    from nereid_gateway.core.request_record import RequestRecord
    from nereid_gateway.server.call import HttpCall

# The gRPC status code.
CANCELLED: Final = 1
_OK: Final = 200


def call_attributes(record: RequestRecord, code: int) -> dict[str, Attribute]:
    """Return the attributes of a call. code: the request's gRPC status code."""
    if record.call is None:
        return {}
    if record.protocol == "grpc":
        return _of_grpc(record.call, code)
    return _of_http(record.call, code)


def _of_http(call: HttpCall, code: int) -> dict[str, Attribute]:
    target = call.target
    attributes: dict[str, Attribute] = {
        "http.request.method": call.method.decode("latin-1"),
        "url.path": routes.path_of(target),
        "network.protocol.version": "1.0" if call.http_1_0 else "1.1",
        **_of_server(call.headers.get(b"host", b"").decode("latin-1")),
        **_of_client(call.peer),
    }
    if route := routes.template(target):
        attributes["http.route"] = route
    # A cancelled call has no response.
    if code != CANCELLED:
        attributes["http.response.status_code"] = http_status(code) if code else _OK
    return attributes


def _of_grpc(call: Call, code: int) -> dict[str, Attribute]:
    service, _, method = call.path.lstrip("/").partition("/")
    return {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": code,
        **_of_server(call.local),
        **_of_client(call.peer),
    }


def _of_server(address: str) -> dict[str, Attribute]:
    host, port = _host_and_port(address)
    attributes: dict[str, Attribute] = {"server.address": host} if host else {}
    if port:
        attributes["server.port"] = port
    return attributes


def _of_client(peer: str) -> dict[str, Attribute]:
    if peer.startswith("unix:"):
        return {"network.transport": "unix"}
    host, port = _host_and_port(peer)
    if not host:
        return {}
    return {"client.address": host, "client.port": port} if port else {"client.address": host}


def _host_and_port(text: str) -> tuple[str, int]:
    """Split host, host:port, [v6] or [v6]:port. A missing port is 0."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = text, "0"
    return host.removeprefix("[").removesuffix("]"), int(port)
