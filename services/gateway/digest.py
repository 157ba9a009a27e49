"""Digests of requests, for the scheduler to find their answers in the cache by.

Only for models that the scheduler has named: nothing is computed for others. Two requests have
equal digests if and only if model, version as asked for, inputs, requested outputs and parameters
are equal; what an answer does not depend on (id, deadline, priority, trace) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash
from google.protobuf.message import DecodeError

from nereid.messages import SharedMemory
from nereid.pb import kserve_pb2
from services.gateway.slabs import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.messages import InferRequest

_MOST_HEADS: Final = 4096
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 4096


class Digester:
    """Knows which models' requests want a digest."""

    def __init__(self, models: Iterable[str]) -> None:
        self._models = frozenset(models)
        self._wanted: dict[bytes, bool] = {}

    def digest(self, request: InferRequest) -> bytes:
        """16 bytes, or none where nobody asked or the request's data lies elsewhere."""
        head = request.head
        wanted = self._wanted.get(head)
        if wanted is None:
            wanted = self._look(head)
        if not wanted or request.fault is not None:
            return b""
        hasher = xxhash.xxh3_128()
        # Each part after its length: two requests cannot be alike by a shift between parts.
        hasher.update(b"%d:" % len(head))
        hasher.update(head)
        if request.parameters:
            text = repr(sorted(request.parameters.items())).encode(errors="surrogatepass")
            hasher.update(b"p%d:" % len(text))
            hasher.update(text)
        for payload in request.payloads:
            if isinstance(payload, SharedMemory) and request.lease is None:
                return b""
            raw = payload if isinstance(payload, bytes) else tensor_bytes(request, payload)
            hasher.update(b"i%d:" % len(raw))
            hasher.update(raw)
        return hasher.digest()

    def _look(self, head: bytes) -> bool:
        try:
            name = kserve_pb2.ModelInferRequest.FromString(head).model_name
        except DecodeError:
            return False
        wanted = name in self._models
        if len(head) <= _LARGEST_REMEMBERED_HEAD_BYTES:
            if len(self._wanted) >= _MOST_HEADS:
                self._wanted.clear()
            self._wanted[head] = wanted
        return wanted
