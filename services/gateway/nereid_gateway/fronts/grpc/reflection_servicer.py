"""Makes replies to reflection requests. The descriptor of v1 is a renamed one of v1alpha."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from nereid.pb import kserve_pb2
from nereid.pb._pool import POOL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Reflect = Callable[[bytes], list[bytes]]

_V1ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
# These imports register descriptors in the pools.
_REGISTERED: Final = (health_pb2, kserve_pb2)


def _v1_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = _V1
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_V1ALPHA, _V1)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_V1ALPHA, _V1)
            method.output_type = method.output_type.replace(_V1ALPHA, _V1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


class _Pools:
    """Descriptor pools in the order of look-ups: Nereid's pool first."""

    def __init__(self) -> None:
        self._pools = (POOL, descriptor_pool.Default(), _v1_pool())

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - protobuf's name
        """Return the file that defines a symbol. Python's pools do not find methods by name."""
        try:
            return self._find("FindFileContainingSymbol", symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            descriptor = self._find("FindServiceByName", service)
            if method not in descriptor.methods_by_name:
                raise
            return descriptor.file

    def _find(self, name: str, *arguments: Any) -> Any:
        for pool in self._pools[:-1]:
            with contextlib.suppress(KeyError):
                return getattr(pool, name)(*arguments)
        return getattr(self._pools[-1], name)(*arguments)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._find, name)


def servicer(services: Sequence[str]) -> Reflect:
    """Return a function of a serialised request, which returns serialised responses."""
    servicer = reflection.ReflectionServicer(services, pool=_Pools())

    def reflect(message: bytes) -> list[bytes]:
        request = reflection_pb2.ServerReflectionRequest.FromString(message)
        responses = servicer.ServerReflectionInfo(iter((request,)), None)
        return [response.SerializeToString() for response in responses]

    return reflect
