"""Digests of clients' requests, by which the scheduler looks up responses in the cache.

Only models that the scheduler has named need them. Large tensors would block the event loop, so the
scheduler computes their digests in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.tensors.digest import KEY_BYTES, Layout, digest, layout_of
from nereid.pb import kserve_pb2
from nereid.shm.reference import SharedMemory
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.wire.messages import InferRequest

_CACHED_HEADS: Final = 4096
_MAX_CACHED_HEAD_BYTES: Final = 4096
# A digest of this many bytes takes a tenth of a millisecond.
_MAX_BYTES: Final = 256 << 10
# Result for a head that is not cached. None is a value in the cache.
_UNKNOWN: Final = layout_of(kserve_pb2.ModelInferRequest(), bytes(KEY_BYTES))


class Digester:
    """Computes digests with the key of the mesh, for the requests of models that need digests."""

    def __init__(
        self,
        models: Iterable[str],
        key: bytes,
        max_bytes: int = _MAX_BYTES,
        cached_heads: int = _CACHED_HEADS,
    ) -> None:
        self._models = frozenset(models)
        self._key = key
        self._max_bytes = max_bytes
        # Value: None if the model needs no digests.
        self._layouts = BoundedCache[bytes, Layout | None](cached_heads, _MAX_CACHED_HEAD_BYTES)

    def digest(self, request: InferRequest) -> bytes:
        """Return a digest, empty if none is needed, or the data is large or in clients' memory."""
        layout = self._layouts.get(request.head, _UNKNOWN)
        if layout is _UNKNOWN:
            layout = self._find_layout(request.head)
        if layout is None or request.error_status is not None:
            return b""
        if layout.inputs != len(request.payloads):
            return b""
        payloads: list[Any] = request.payloads
        if request.lease is not None:
            payloads = [tensor_bytes(request, payload) for payload in payloads]
        elif SharedMemory in map(type, payloads):
            return b""
        if sum(map(len, payloads)) > self._max_bytes:
            return b""
        return digest(layout, request.parameters, payloads)

    def _find_layout(self, head: bytes) -> Layout | None:
        try:
            message = kserve_pb2.ModelInferRequest.FromString(head)
        except DecodeError:
            return None
        wanted = message.model_name in self._models
        layout = layout_of(message, self._key) if wanted else None
        return self._layouts.remember(head, layout)
