"""Digests of requests, which are the keys of responses in the cache.

Two requests to one version of a model have equal digests if and only if their inputs and parameters
are equal, in any order. The requested outputs are not included: only the model's configuration says
whether a request asks for all outputs. Fields that do not affect the response (id, deadline,
priority, trace) are left out.

Clients choose the digested content. If they could find two inputs with the same digest, one client
could get another's response. Therefore digests are BLAKE3, keyed by a secret of the mesh, and every
part is preceded by its length, so that no byte can be moved from one part to another.
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
# If all payloads together are at most this large, copying them together and hashing them in one
# call is cheaper than one call for each payload.
_JOINED_BYTES: Final = 8192


class Layout(NamedTuple):
    """Inputs that a head declares, prepared for digests.

    If two heads declare the same inputs in different orders, their layouts give the same digests.
    """

    # Hash state after hashing the declared inputs with the key. The digest of each request is
    # computed from a copy of this state.
    hasher: blake3
    # Indices of the payloads in the order in which the digest reads them; `None` if they are in
    # this order already.
    order: tuple[int, ...] | None
    inputs: int
    # Struct that packs the lengths: first of the parameters' text, then of each payload.
    lengths: struct.Struct


def layout_of(head: kserve_pb2.ModelInferRequest, key: bytes) -> Layout:
    """Return the layout of requests with this head.

    key: secret of KEY_BYTES.
    """
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
    """Return a request's digest, of DIGEST_BYTES.

    payloads: one payload for each input of the layout.
    """
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
    """Return a keyed digest of these parts, in this order. Its size is DIGEST_BYTES."""
    framed = [struct.pack("<Q", len(part)) + part for part in parts]
    return blake3(b"".join(framed), key=key).digest()
