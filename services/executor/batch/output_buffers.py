"""Where the answers of models that execute requests lie: in the frame, or in shared memory.

Outputs of a worker's are as large as the last ones, mostly: memory for them is sent along with each
request, so that the worker can write there itself. Whatever else is large is copied there. Used by
an instance's thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nereid.core.codecs import write_error, write_payloads
from nereid.core.messages import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Response
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.executor.shared_tensors import OutputLender


class Rooms:
    """One instance's. foreseen: a request has one response, whose size may be foreseen."""

    def __init__(self, *, foreseen: bool) -> None:
        # Set where answers may be put in shared memory.
        self.lender: OutputLender | None = None
        # How much shared memory the last outputs took; 0: they were small.
        self.expected_bytes = 0
        self._foreseen = foreseen

    def take(self) -> SharedMemory | None:
        """Memory for outputs as large as the last ones were, if that is worth it."""
        if not self.expected_bytes or self.lender is None:
            return None
        return self.lender.room(self.expected_bytes)

    def free(self, room: SharedMemory | None) -> None:
        """Nothing was put there, and nothing will be."""
        if room is not None and self.lender is not None:
            self.lender.free(room.segment_name)

    def fill(
        self, wire_response: pb.InferResponse, response: Response, room: SharedMemory | None
    ) -> None:
        """Write a response into an answer. room: where its outputs may be."""
        tensors: Sequence[Any] = response.tensors
        if room is not None and tensors and type(tensors[0]) is SharedMemory:
            wire_response.head = response.head
            write_payloads(tensors, wire_response.payloads)
            return
        self.free(room)
        if response.error_status is not None:
            write_error(response.error_status, wire_response.error)
        elif response.head:
            wire_response.head = response.head
            self._lend(tensors, wire_response)

    def _lend(self, tensors: Sequence[Any], wire_response: pb.InferResponse) -> None:
        """Put tensors in shared memory if they are large; the next ones may go there directly."""
        lent = None
        self.expected_bytes = 0
        if self.lender is not None:
            lent = self.lender.lend(tensors)
            self.lender.lent.clear()
        if lent and self._foreseen:
            self.expected_bytes = lent[-1].offset + lent[-1].size_bytes
        write_payloads(lent or [*map(bytes, tensors)], wire_response.payloads)
