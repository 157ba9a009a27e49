"""The key of a request in the response cache: its digest, and the outputs that it asks for.

Requests from gateways bring their digest; those of models and of ensembles' steps are digested
here. Tensors are opaque bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import xxhash

from nereid.core.bounded_cache import BoundedCache
from nereid.core.digest import Layout, digest, layout_of
from nereid.core.messages import payload_bytes
from nereid.pb import kserve_pb2
from nereid.shm.mappings import SegmentLostError, view
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.core.messages import InferRequest, Parameter, Payload

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_MAX_HEADS: Final = 4096
_MAX_HEAD_BYTES: Final = 4096
# Above this size a digest, mostly of mapped memory, takes longer than handing it to a thread.
_LARGE_BYTES: Final = 1 << 20


class CacheKeys:
    """The keys of the requests to one model version."""

    def __init__(self, outputs: Iterable[str], max_heads: int = _MAX_HEADS) -> None:
        """outputs: all that the model has."""
        self._outputs = frozenset(outputs)
        # By head: its layout, and the key's suffix for the outputs that it asks for.
        self._heads = BoundedCache[bytes, tuple[Layout, bytes]](max_heads, _MAX_HEAD_BYTES)

    def key(self, request: InferRequest) -> bytes:
        """The key of a valid request; empty: this process cannot read its data."""
        layout, outputs = self._heads.get(request.head) or self._read_head(request.head)
        if not request.digest:
            request.digest = _digest(layout, request.parameters, request.payloads)
        return request.digest.hex().encode() + outputs if request.digest else b""

    def large_digest(self, request: InferRequest) -> Callable[[], bytes] | None:
        """Computes the digest of a large request without one, for a thread; its result may be
        empty as key()'s. None: key() is fast enough.
        """
        if request.digest or sum(map(payload_bytes, request.payloads)) <= _LARGE_BYTES:
            return None
        layout, _ = self._heads.get(request.head) or self._read_head(request.head)
        return partial(_digest, layout, request.parameters, request.payloads)

    def _read_head(self, head: bytes) -> tuple[Layout, bytes]:
        message = kserve_pb2.ModelInferRequest.FromString(head)
        return self._heads.remember(head, (layout_of(message), self._output_key(message.outputs)))

    def _output_key(self, outputs: Sequence[Output]) -> bytes:
        """Empty for all outputs without parameters, named or not."""
        if not any(output.parameters for output in outputs):
            names = sorted({output.name for output in outputs})
            if not names or self._outputs.issubset(names):
                return b""
            # Responses have their outputs in the model's order, whatever order was requested.
            outputs = [
                kserve_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names
            ]
        requested = kserve_pb2.ModelInferRequest(outputs=outputs)
        text = requested.SerializeToString(deterministic=True)
        return b":" + xxhash.xxh3_64(text).hexdigest().encode()


def _digest(
    layout: Layout, parameters: dict[str, Parameter] | None, payloads: Iterable[Payload]
) -> bytes:
    """Empty: this process cannot read the data."""
    try:
        data = [view(each) if isinstance(each, SharedMemory) else each for each in payloads]
    except SegmentLostError:
        return b""
    return digest(layout, parameters, data)
