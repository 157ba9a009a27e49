"""Digests of requests: the keys of their responses in the cache.

Two requests to one version of a model have equal digests if and only if their inputs and parameters
are equal, in any order. The requested outputs are not included: only the model's configuration says
whether those are all. Fields that do not affect the response (id, deadline, priority, trace) are
left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import xxhash

from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.messages import Parameter


class Layout(NamedTuple):
    """The inputs that a head declares; equal for heads that differ in their order only."""

    text: bytes
    # Indices of the payloads, in the order in which the digest reads them.
    order: tuple[int, ...]


def layout_of(head: kserve_pb2.ModelInferRequest) -> Layout:
    """The layout of the requests with this head."""
    inputs = head.inputs
    order = tuple(sorted(range(len(inputs)), key=lambda index: inputs[index].name))
    ordered = kserve_pb2.ModelInferRequest(inputs=[inputs[index] for index in order])
    return Layout(ordered.SerializeToString(deterministic=True), order)


def digest(
    layout: Layout,
    parameters: dict[str, Parameter] | None,
    payloads: Sequence[bytes | memoryview],
) -> bytes:
    """The digest, of 16 bytes."""
    hasher = xxhash.xxh3_128()
    # Each part is preceded by its length, so that moving bytes between parts changes the digest.
    hasher.update(b"%d:" % len(layout.text))
    hasher.update(layout.text)
    if parameters:
        text = repr(sorted(parameters.items())).encode(errors="surrogatepass")
        hasher.update(b"p%d:" % len(text))
        hasher.update(text)
    for index in layout.order:
        raw = payloads[index]
        hasher.update(b"i%d:" % len(raw))
        hasher.update(raw)
    return hasher.digest()
