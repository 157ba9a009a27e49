"""Digests of requests, for their answers to be found in the cache by.

Two requests to one version of a model have equal digests if and only if their inputs and parameters
are equal, in whatever order they come. Which outputs are asked for is not in it: only who knows the
model can tell whether those are all. What an answer does not depend on (id, deadline, priority,
trace) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import xxhash

from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.messages import Parameter


class Layout(NamedTuple):
    """What a head says of its inputs; equal for all heads that say the same in another order."""

    text: bytes
    # The places of the payloads, in the order in which they are read.
    order: tuple[int, ...]


def layout_of(head: kserve_pb2.ModelInferRequest) -> Layout:
    """The layout of the requests with this head."""
    inputs = head.inputs
    order = tuple(sorted(range(len(inputs)), key=lambda place: inputs[place].name))
    told = kserve_pb2.ModelInferRequest(inputs=[inputs[place] for place in order])
    return Layout(told.SerializeToString(deterministic=True), order)


def digest(
    layout: Layout,
    parameters: dict[str, Parameter] | None,
    payloads: Sequence[bytes | memoryview],
) -> bytes:
    """16 bytes."""
    hasher = xxhash.xxh3_128()
    # Each part after its length: two requests cannot be alike by a shift between parts.
    hasher.update(b"%d:" % len(layout.text))
    hasher.update(layout.text)
    if parameters:
        text = repr(sorted(parameters.items())).encode(errors="surrogatepass")
        hasher.update(b"p%d:" % len(text))
        hasher.update(text)
    for place in layout.order:
        raw = payloads[place]
        hasher.update(b"i%d:" % len(raw))
        hasher.update(raw)
    return hasher.digest()
