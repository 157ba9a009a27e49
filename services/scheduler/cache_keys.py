"""What a request's answer is kept under: its digest, and which outputs it asks for.

Requests that come from gateways bring their digest; those of models and of ensembles' steps are
digested here, where their tensors pass by. Tensors count as bytes and nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from nereid.digest import Layout, digest, layout_of
from nereid.messages import SharedMemory
from nereid.pb import kserve_pb2
from nereid.slab import LostError, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nereid.messages import InferRequest, Payload

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_MOST_HEADS: Final = 4096
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 4096


class CacheKeys:
    """The keys of the requests to one model version."""

    def __init__(self, outputs: Iterable[str]) -> None:
        """outputs: all that the model has."""
        self._outputs = frozenset(outputs)
        # By head: its layout, and what stands in the key for the outputs that it asks for.
        self._heads: dict[bytes, tuple[Layout, bytes]] = {}

    def key(self, request: InferRequest) -> bytes:
        """The key of a valid request; empty: its data lies where nobody here can read it."""
        layout, outputs = self._heads.get(request.head) or self._look(request.head)
        if not request.digest:
            try:
                request.digest = digest(layout, request.parameters, _bytes(request.payloads))
            except LostError:
                return b""
        return request.digest.hex().encode() + outputs

    def _look(self, head: bytes) -> tuple[Layout, bytes]:
        message = kserve_pb2.ModelInferRequest.FromString(head)
        about = layout_of(message), self._asked(message.outputs)
        if len(head) <= _LARGEST_REMEMBERED_HEAD_BYTES:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = about
        return about

    def _asked(self, outputs: Sequence[Output]) -> bytes:
        """Empty for all of the outputs as they are, be they named or not."""
        if not any(output.parameters for output in outputs):
            names = sorted({output.name for output in outputs})
            if not names or self._outputs.issubset(names):
                return b""
            # Answers have their outputs in the model's order, whatever order was asked for.
            outputs = [
                kserve_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names
            ]
        asked = kserve_pb2.ModelInferRequest(outputs=outputs)
        text = asked.SerializeToString(deterministic=True)
        return b":" + xxhash.xxh3_64(text).hexdigest().encode()


def _bytes(payloads: Iterable[Payload]) -> list[bytes | memoryview]:
    """What to digest; raises LostError."""
    return [view(each) if isinstance(each, SharedMemory) else each for each in payloads]
