"""Checks that raw BYTES tensors are well-formed, with Triton's error texts.

Services behind the gateway treat tensors as opaque bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferRequest
    from nereid_gateway.core.tensors.jobs import RunJob

_unpack_length = Struct("<I").unpack_from


class StringInput(NamedTuple):
    """Input of type BYTES, with the number of elements that its shape implies."""

    position: int
    name: str
    model: str
    elements: int


def check_job(
    raws: Sequence[bytes], tensors: Sequence[StringInput], request_id: str
) -> tuple[None, tuple[()]]:
    """Check several tensors. This job runs in a decoder process."""
    for raw, tensor in zip(raws, tensors, strict=True):
        check(raw, tensor, request_id)
    return None, ()


async def check_large(
    request: InferRequest, tensors: Sequence[StringInput], run_job: RunJob
) -> None:
    """Check large inputs in a decoder process. Raises NereidError as check() does."""
    raws = [tensor_bytes(request, request.payloads[tensor.position]) for tensor in tensors]
    await run_job(check_job, tuple(tensors), request.request_id, blobs=raws)


def prefix(request_id: str) -> str:
    """Return the prefix that Triton's core puts before its error texts."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def check(raw: bytes | memoryview, tensor: StringInput, request_id: str) -> None:
    """Raise InvalidArgument unless raw holds exactly as many elements as the shape says."""
    size, position, count, expected = len(raw), 0, 0, tensor.elements
    while position < size:
        if position + 4 > size:
            raise InvalidArgument(
                f"{prefix(request_id)}incomplete string length indicator for inference input"
                f" '{tensor.name}' for model '{tensor.model}', expecting 4 bytes but only"
                f" {size - position} bytes available. Please make sure the string length"
                " indicator is in one buffer."
            )
        length = _unpack_length(raw, position)[0]
        position += 4
        count += 1
        if count > expected:
            raise InvalidArgument(
                f"{prefix(request_id)}unexpected number of string elements {count} for inference"
                f" input '{tensor.name}' for model '{tensor.model}', expecting {expected}"
            )
        if position + length > size:
            if count < expected:
                break
            raise InvalidArgument(
                f"incomplete string data for inference input '{tensor.name}', expecting string of"
                f" length {length} but only {size - position} bytes available",
                accepted=True,
            )
        position += length
    if count != expected:
        raise InvalidArgument(
            f"{prefix(request_id)}expected {expected} string elements for inference input"
            f" '{tensor.name}' for model '{tensor.model}', got {count}"
        )
