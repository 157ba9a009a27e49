"""Writes responses of one model that executes requests, as pieces of Executed messages.

Most responses are as large as the one before, so requests bring a buffer of that size, to which the
model's process can write directly.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.response_prefixes import response_prefixes
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SHM_THRESHOLD_BYTES
from nereid_executor.batch.responses import encode_response, error_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Response
    from nereid_executor.batch.arrays import Piece
    from nereid_executor.core.shared_tensors import OutputLender

# Heads differ by batch size and shape.
_MAX_HEADS: Final = 1024


class ResponseWriter:
    """Writes the responses of one model, in one thread."""

    def __init__(self, *, predictable: bool) -> None:
        self.lender: OutputLender | None = None
        # Bytes of shared memory that the last outputs took; 0 if those outputs were small.
        self.expected_bytes = 0
        self._predictable = predictable
        # Key: a response's head. Value: the sizes of its outputs, and the bytes before each output.
        self._prefixes: BoundedCache[bytes, tuple[list[int], list[bytes]]]
        self._prefixes = BoundedCache(_MAX_HEADS)

    def allocate_buffer(self) -> SharedMemory | None:
        """Return a buffer for outputs as large as the last ones; `None` if no memory is free."""
        return None if self.lender is None else self.lender.allocate_buffer(self.expected_bytes)

    def release_buffer(self, buffer: SharedMemory | None) -> None:
        """Release a buffer to which nothing was written, and nothing will be written."""
        if buffer is not None and self.lender is not None:
            self.lender.free_segment(buffer.segment_name)

    def write_response(self, response: Response, buffer: SharedMemory | None) -> Sequence[Piece]:
        """Return the pieces of an Executed message that has only this response."""
        _, _, error_status, head, tensors = response
        if error_status is not None or not tensors or buffer is not None or self.expected_bytes:
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
        tensors = response.tensors
        if buffer is None or not tensors or type(tensors[0]) is not SharedMemory:
            self.release_buffer(buffer)
            tensors = self._place_tensors(tensors) if response.head else ()
        if response.error_status is not None:
            return (error_response(response.error_status),)
        return (encode_response(response.head, tensors),)

    def _place_tensors(self, tensors: Sequence[Any]) -> Sequence[Any]:
        lent = None
        self.expected_bytes = 0
        if self.lender is not None:
            lent = self.lender.lend(tensors)
            self.lender.lent.clear()
        if lent and self._predictable:
            self.expected_bytes = lent[-1].offset + lent[-1].size_bytes
        return lent or [*map(bytes, tensors)]
