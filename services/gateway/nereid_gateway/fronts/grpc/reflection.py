"""gRPC server reflection, versions v1alpha and v1.

grpcio-reflection makes the replies. It is imported on first use, because it imports all of grpcio:
a tenth of the process's start time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.rpc import Status
from nereid_gateway.plane.decoding.limits import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.rpc import Call, StreamHandler
    from nereid_gateway.fronts.grpc.reflection_servicer import Reflect

_SERVICES: Final = (
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)


def handlers(services: Sequence[str]) -> dict[str, StreamHandler]:
    """Return stream handlers by path. They list these services and the reflection services."""

    @functools.cache
    def servicer() -> Reflect:
        from nereid_gateway.fronts.grpc import (  # noqa: PLC0415 - see the module's docstring
            reflection_servicer,
        )

        return reflection_servicer.servicer((*services, *_SERVICES))

    def on_open(call: Call) -> None:
        def on_message(message: bytes) -> None:
            if len(message) > MAX_CONTROL_BYTES:
                call.fail(Status.RESOURCE_EXHAUSTED, "the message is too large")
                return
            try:
                responses = servicer()(message)
            except DecodeError:
                call.fail(Status.INTERNAL, "Unable to parse request")
                return
            for response in responses:
                call.send(response)

        call.on_message = on_message
        call.on_half_close = call.finish

    return {f"/{service}/ServerReflectionInfo": on_open for service in _SERVICES}
