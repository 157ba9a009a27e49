"""The responses of one model that executes requests, as pieces of Executed messages.

What precedes outputs of known sizes is remembered by the response's head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.bounded_cache import BoundedCache
from nereid.core.response_prefixes import response_prefixes
from nereid.pb import nereid_pb2 as pb
from nereid.shm.segments import SHM_THRESHOLD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Response
    from nereid.services.executor.batch.arrays import Piece
    from nereid.services.executor.batch.output_buffers import OutputBuffers
    from nereid.shm.reference import SharedMemory

# Responses differ by batch size and shape.
_MOST_HEADS: Final = 1024


class ResponseWriter:
    """Writes one model's responses; output_buffers: for large outputs."""

    def __init__(self, output_buffers: OutputBuffers) -> None:
        self._output_buffers = output_buffers
        # By a response's head: its outputs' sizes, and what precedes each of them.
        self._prefixes: BoundedCache[bytes, tuple[list[int], list[bytes]]]
        self._prefixes = BoundedCache(_MOST_HEADS)

    def write_response(self, response: Response, buffer: SharedMemory | None) -> Sequence[Piece]:
        """The pieces of an Executed message with this response alone.

        buffer: shared memory where its outputs may be.
        """
        _, _, error_status, head, tensors = response
        if (
            error_status is not None
            or not tensors
            or buffer is not None
            or self._output_buffers.expected_bytes
        ):
            return self._write_message(response, buffer)
        sizes = [*map(len, tensors)]
        if sum(sizes) >= SHM_THRESHOLD_BYTES:
            return self._write_message(response, None)
        known = self._prefixes.get(head)
        if known is None or known[0] != sizes:
            known = self._prefixes.remember(head, (sizes, response_prefixes(head, sizes)))
        pieces: list[Any] = []
        for prefix, tensor in zip(known[1], tensors):  # noqa: B905 - of equal length
            pieces += (prefix, tensor)
        return pieces

    def _write_message(self, response: Response, buffer: SharedMemory | None) -> Sequence[Piece]:
        executed = pb.Executed()
        self._output_buffers.fill_response(executed.responses.add(), response, buffer)
        return (executed.SerializeToString(),)
