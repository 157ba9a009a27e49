"""Makes the keys of requests in the response cache.

A key consists of the version's scope, the request's digest, and the requested outputs. All are
keyed digests of fixed length: a key contains no text from a client, and two requests have the same
key only if their responses are interchangeable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.tensors.digest import DIGEST_BYTES, Layout, digest, digest_of_parts, layout_of
from nereid.core.wire.messages import payload_bytes
from nereid.pb import kserve_pb2
from nereid.shm.mappings import SegmentLostError, view
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.core.wire.messages import InferRequest, Parameter, Payload
    from nereid_scheduler.versions.caching.cache_secrets import CacheSecrets

    Output = kserve_pb2.ModelInferRequest.InferRequestedOutputTensor

_MAX_HEADS: Final = 4096
_MAX_HEAD_BYTES: Final = 4096
# Larger requests are digested in a thread: the digest takes longer than the hand-over.
_LARGE_BYTES: Final = 256 << 10


class CacheKeys:
    """Make the keys of requests to one model version."""

    def __init__(
        self, outputs: Iterable[str], secrets: CacheSecrets, max_heads: int = _MAX_HEADS
    ) -> None:
        """Make keys for a model. outputs: all outputs that the model has."""
        self._outputs = frozenset(outputs)
        self._secrets = secrets
        # Maps a head to its layout, and to the suffix of the key for the requested outputs.
        self._heads = BoundedCache[bytes, tuple[Layout, bytes]](max_heads, _MAX_HEAD_BYTES)

    def scope(self, name: str, number: int, revision: bytes) -> bytes:
        """Return the prefix of a version's keys for this revision of its files."""
        parts = (b"scope", name.encode(), b"%d" % number, revision)
        return digest_of_parts(self._secrets.name_key, *parts)

    def key(self, request: InferRequest) -> bytes:
        """Return the key of a valid request; empty if this process cannot read its tensors."""
        layout, outputs = self._heads.get(request.head) or self._read_head(request.head)
        # A gateway of another release may send a different digest.
        if len(request.digest) != DIGEST_BYTES:
            request.digest = _digest(layout, request.parameters, request.payloads)
        if not request.digest:
            return b""
        rights = request.callable_models
        # A model may respond with what it has got by calls of others.
        caller = digest_of_parts(self._secrets.name_key, b"rights", rights) if rights else b""
        return request.digest + outputs + caller

    def large_digest(self, request: InferRequest) -> Callable[[], bytes] | None:
        """Return a function that digests a large request in a thread; `None` if key() is fast."""
        if (
            len(request.digest) == DIGEST_BYTES
            or sum(map(payload_bytes, request.payloads)) <= _LARGE_BYTES
        ):
            return None
        layout, _ = self._heads.get(request.head) or self._read_head(request.head)
        return partial(_digest, layout, request.parameters, request.payloads)

    def _read_head(self, head: bytes) -> tuple[Layout, bytes]:
        message = kserve_pb2.ModelInferRequest.FromString(head)
        layout = layout_of(message, self._secrets.request_key)
        return self._heads.remember(head, (layout, self._output_key(message.outputs)))

    def _output_key(self, outputs: Sequence[Output]) -> bytes:
        """Return the key of the requested outputs; empty for all outputs without parameters."""
        if not any(output.parameters for output in outputs):
            names = sorted({output.name for output in outputs})
            if not names or self._outputs.issubset(names):
                return b""
            # A response has its outputs in the model's order, whatever the order in the request.
            outputs = [
                kserve_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names
            ]
        requested = kserve_pb2.ModelInferRequest(outputs=outputs)
        text = requested.SerializeToString(deterministic=True)
        return digest_of_parts(self._secrets.name_key, b"outputs", text)


def _digest(
    layout: Layout, parameters: dict[str, Parameter] | None, payloads: Iterable[Payload]
) -> bytes:
    try:
        data = [
            view(payload) if isinstance(payload, SharedMemory) else payload for payload in payloads
        ]
    except SegmentLostError:
        return b""
    return digest(layout, parameters, data)
