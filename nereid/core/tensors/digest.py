"""Digests of requests, which are the keys of responses in the cache.

Digests are equal if and only if model version, inputs and parameters are equal, in any order.
Requested outputs are not included. Clients choose the content, so a digest must not be forgeable:
BLAKE3 with a secret key, and every part is preceded by its length.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import Parameter

DIGEST_BYTES: Final = 32
KEY_BYTES: Final = 32
# Up to this size, copying all payloads and hashing once is cheaper than one call for each.
_JOINED_BYTES: Final = 8192


class Layout(NamedTuple):
    """Inputs of a head, prepared for digests. The order of the inputs does not matter."""

    # State after hashing the inputs with the key; copied for each request.
    hasher: blake3
    # Order in which the digest reads the payloads; `None` for their own order.
    order: tuple[int, ...] | None
    inputs: int
    # Packs the lengths of the parameters' text and of each payload.
    lengths: struct.Struct


def layout_of(head: kserve_pb2.ModelInferRequest, key: bytes) -> Layout:
    """Return the layout of requests with this head; `key` is a secret of KEY_BYTES."""
    inputs = head.inputs
    order = tuple(sorted(range(len(inputs)), key=lambda index: inputs[index].name))
    ordered = kserve_pb2.ModelInferRequest(inputs=[inputs[index] for index in order])
    text = ordered.SerializeToString(deterministic=True)
    return Layout(
        blake3(struct.pack("<Q", len(text)) + text, key=key),
        None if order == tuple(range(len(inputs))) else order,
        len(inputs),
        struct.Struct(f"<{1 + len(inputs)}Q"),
    )


def digest(
    layout: Layout,
    parameters: dict[str, Parameter] | None,
    payloads: Sequence[bytes | memoryview],
) -> bytes:
    """Return a request's digest of DIGEST_BYTES, with one payload for each input."""
    base, order, _, lengths = layout
    if order is not None:
        payloads = [payloads[index] for index in order]
    text = b""
    if parameters:
        text = repr(sorted(parameters.items())).encode(errors="surrogatepass")
    sizes = [*map(len, payloads)]
    frame = lengths.pack(len(text), *sizes)
    hasher = base.copy()
    if sum(sizes) <= _JOINED_BYTES:
        hasher.update(b"".join((frame, text, *payloads)))
    else:
        hasher.update(frame + text)
        for payload in payloads:
            hasher.update(payload)
    return hasher.digest()


def digest_of_parts(key: bytes, *parts: bytes) -> bytes:
    """Return a keyed digest of DIGEST_BYTES of these parts."""
    framed = [struct.pack("<Q", len(part)) + part for part in parts]
    return blake3(b"".join(framed), key=key).digest()
