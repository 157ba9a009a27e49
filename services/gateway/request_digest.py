"""Digests of clients' requests, for the scheduler to find their answers in the cache by.

Only for models that the scheduler has named: nothing is computed for others. Large tensors would
hold up everybody else: where a digest is missing, the scheduler has a thread make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from nereid.core.digest import Layout, digest, layout_of
from nereid.core.messages import SharedMemory
from nereid.pb import kserve_pb2
from nereid.services.gateway.shared_tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.messages import InferRequest

_MOST_HEADS: Final = 4096
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 4096
# So much takes half a millisecond.
_MOST_BYTES: Final = 16 << 20
_UNKNOWN: Final = Layout(b"", ())


class Digester:
    """Knows which models' requests want a digest."""

    def __init__(self, models: Iterable[str]) -> None:
        self._models = frozenset(models)
        # By head; None: nobody wants to have its requests digested.
        self._layouts: dict[bytes, Layout | None] = {}

    def digest(self, request: InferRequest) -> bytes:
        """16 bytes, or none where nobody asked, the request's data lies elsewhere or is large."""
        layout = self._layouts.get(request.head, _UNKNOWN)
        if layout is _UNKNOWN:
            layout = self._look(request.head)
        if layout is None or request.error_status is not None:
            return b""
        if len(layout.order) != len(request.payloads):
            return b""
        if request.lease is None and any(
            isinstance(payload, SharedMemory) for payload in request.payloads
        ):
            return b""
        payloads = [tensor_bytes(request, payload) for payload in request.payloads]
        if sum(map(len, payloads)) > _MOST_BYTES:
            return b""
        return digest(layout, request.parameters, payloads)

    def _look(self, head: bytes) -> Layout | None:
        try:
            message = kserve_pb2.ModelInferRequest.FromString(head)
        except DecodeError:
            return None
        layout = layout_of(message) if message.model_name in self._models else None
        if len(head) <= _LARGEST_REMEMBERED_HEAD_BYTES:
            if len(self._layouts) >= _MOST_HEADS:
                self._layouts.clear()
            self._layouts[head] = layout
        return layout
