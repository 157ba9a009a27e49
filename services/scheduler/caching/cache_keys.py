"""What a request's answer is kept under: its digest, and which outputs it asks for.

Requests that come from gateways bring their digest; those of models and of ensembles' steps are
digested here, where their tensors pass by. Tensors count as bytes and nothing more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import xxhash

from nereid.core.digest import Layout, digest, layout_of
from nereid.core.messages import SharedMemory, payload_bytes
from nereid.pb import kserve_pb2
from nereid.shm.mappings import LostError, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.core.messages import InferRequest, Parameter, Payload

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_MOST_HEADS: Final = 4096
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 4096
# Past this a digest, mapped memory's mostly, takes longer than to have a thread make it.
_LONG_BYTES: Final = 1 << 20


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
            request.digest = _digest(layout, request.parameters, request.payloads)
        return request.digest.hex().encode() + outputs if request.digest else b""

    def long_work(self, request: InferRequest) -> Callable[[], bytes] | None:
        """What makes the digest of a request that has none, for a thread, as it takes long; empty
        as the key is. None: it takes no time worth that.
        """
        if request.digest or sum(map(payload_bytes, request.payloads)) <= _LONG_BYTES:
            return None
        layout, _ = self._heads.get(request.head) or self._look(request.head)
        return partial(_digest, layout, request.parameters, request.payloads)

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


def _digest(
    layout: Layout, parameters: dict[str, Parameter] | None, payloads: Iterable[Payload]
) -> bytes:
    """Empty: the data lies where nobody here can read it."""
    try:
        found = [view(each) if isinstance(each, SharedMemory) else each for each in payloads]
    except LostError:
        return b""
    return digest(layout, parameters, found)
