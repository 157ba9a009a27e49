"""The answers of one model that executes requests, as parts of Executed messages.

What stands before outputs of known sizes is remembered by the answer's head. Used by an instance's
thread alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.responses import prefixes
from nereid.shm.segments import SHM_THRESHOLD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.backends import Response
    from nereid.core.messages import SharedMemory
    from nereid.services.executor.batch.arrays import Piece
    from nereid.services.executor.batch.output_buffers import Rooms

# Answers differ by batch size and shape.
_MOST_HEADS: Final = 1024


class ResponseWriter:
    """Writes one model's answers; rooms: where large outputs go."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        # By an answer's head: its outputs' sizes, and what stands before each of them.
        self._prefixes: dict[bytes, tuple[list[int], list[bytes]]] = {}

    def write(self, response: Response, room: SharedMemory | None) -> Sequence[Piece]:
        """The pieces of an Executed message that holds just this answer; room: where its outputs
        may be.
        """
        _, _, error_status, head, tensors = response
        if (
            error_status is not None
            or not tensors
            or room is not None
            or self._rooms.expected_bytes
        ):
            return self._any(response, room)
        sizes = [*map(len, tensors)]
        if sum(sizes) >= SHM_THRESHOLD_BYTES:
            return self._any(response, None)
        known = self._prefixes.get(head)
        if known is None or known[0] != sizes:
            if len(self._prefixes) >= _MOST_HEADS:
                self._prefixes.clear()
            known = self._prefixes[head] = sizes, prefixes(head, sizes)
        pieces: list[Any] = []
        for prefix, tensor in zip(known[1], tensors):  # noqa: B905 - of one length, as just seen
            pieces += (prefix, tensor)
        return pieces

    def _any(self, response: Response, room: SharedMemory | None) -> Sequence[Piece]:
        executed = pb.Executed()
        self._rooms.fill(executed.responses.add(), response, room)
        return (executed.SerializeToString(),)
