"""gRPC server reflection, versions v1alpha and v1 (their messages are alike), for either engine.

The replies are grpcio-reflection's own; descriptors come from Nereid's private pool and, for the
health and reflection services, from protobuf's default one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from nereid.pb import kserve_pb2
from nereid.pb._pool import POOL
from nereid.rpc import Status
from nereid.services.gateway.decoding.limits import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc import Call, StreamHandler

_SERVICES: Final = (
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)
# Imported for what they register in the pools.
_REGISTERED: Final = (health_pb2, kserve_pb2)


class _Pools:
    """Looks in Nereid's pool first, then in the default one."""

    def __getattr__(self, name: str) -> Any:
        first = getattr(POOL, name)
        second = getattr(descriptor_pool.Default(), name)

        def find(*arguments: Any) -> Any:
            try:
                return first(*arguments)
            except KeyError:
                return second(*arguments)

        return find


def handlers(services: Sequence[str]) -> dict[str, StreamHandler]:
    """Stream handlers by path; they list these services and reflection itself."""
    servicer = reflection.ReflectionServicer((*services, _SERVICES[0]), pool=_Pools())

    def on_open(call: Call) -> None:
        def on_message(message: bytes) -> None:
            if len(message) > MAX_CONTROL_BYTES:
                call.fail(Status.RESOURCE_EXHAUSTED, "the message is too large")
                return
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(message)
            except DecodeError:
                call.fail(Status.INTERNAL, "Unable to parse request")
                return
            for response in servicer.ServerReflectionInfo(iter((request,)), None):
                call.send(response.SerializeToString())

        call.on_message = on_message
        call.on_half_close = call.finish

    return {f"/{service}/ServerReflectionInfo": on_open for service in _SERVICES}
