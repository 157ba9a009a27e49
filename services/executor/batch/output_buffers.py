"""Where the outputs of models that execute requests are put: in the frame, or in shared memory.

Outputs are mostly as large as the last ones, so the requests of a model with large outputs bring a
buffer, to which the model's process can write them itself. Other large outputs are copied. Used by
an instance's thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.codecs import write_error, write_payloads
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Response
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.executor.shared_tensors import OutputLender


class OutputBuffers:
    """One instance's. predictable: a request has one response, whose size may be predicted."""

    def __init__(self, *, predictable: bool) -> None:
        # Lends shared memory; None: there is none to lend, or not yet.
        self.lender: OutputLender | None = None
        # The shared memory that the last outputs took; 0: they were small.
        self.expected_bytes = 0
        self._predictable = predictable

    def allocate(self) -> SharedMemory | None:
        """A buffer for outputs as large as the last ones; None: there is no memory."""
        return None if self.lender is None else self.lender.allocate_buffer(self.expected_bytes)

    def release(self, buffer: SharedMemory | None) -> None:
        """Nothing was written to it, and nothing will be."""
        if buffer is not None and self.lender is not None:
            self.lender.free_segment(buffer.segment_name)

    def fill_response(
        self, wire_response: pb.InferResponse, response: Response, buffer: SharedMemory | None
    ) -> None:
        """Fill a response's message. buffer: where its outputs may be."""
        tensors: Sequence[Any] = response.tensors
        if buffer is not None and tensors and type(tensors[0]) is SharedMemory:
            wire_response.head = response.head
            write_payloads(tensors, wire_response.payloads)
            return
        self.release(buffer)
        if response.error_status is not None:
            write_error(response.error_status, wire_response.error)
        elif response.head:
            wire_response.head = response.head
            write_payloads(self._place_tensors(tensors), wire_response.payloads)

    def _place_tensors(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Copy tensors to shared memory if they are large, and expect the next ones to be so."""
        lent = None
        self.expected_bytes = 0
        if self.lender is not None:
            lent = self.lender.lend(tensors)
            self.lender.lent.clear()
        if lent and self._predictable:
            self.expected_bytes = lent[-1].offset + lent[-1].size_bytes
        return lent or [*map(bytes, tensors)]
