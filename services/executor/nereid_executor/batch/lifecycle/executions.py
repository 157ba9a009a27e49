"""The batches of one instance, as they are recorded for timelines: written once a reply is, read
when somebody asks. The thread that executes a batch records it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from librt.strings import write_i64_le

from nereid.timeline.records import ExecutionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.timeline.recorder import Recorder
    from nereid.timeline.ring import PackedRing

# When the reply was written, and the batch received; its number and size; how long its inputs, the
# model and its outputs took; the bytes of its frame and of the reply.
_RECORD: Final = Struct("<9q")


class Executions:
    """Recorded in a ring of its own."""

    def __init__(self, recorder: Recorder, model: str, version: str, instance: str) -> None:
        self._named = model, version, instance
        self._recorder = recorder
        self._ring: PackedRing = recorder.add_packed_ring(ExecutionRecord, self._read)

    def close(self) -> None:
        """The instance will execute no more."""
        self._recorder.remove_ring(ExecutionRecord, self._ring)

    def record(  # noqa: PLR0913, PLR0917 (a record)
        self,
        written_ns: int,
        received_ns: int,
        number: int,
        size: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        """A batch of so many requests was received then, and its reply written; its phases took so
        long. bytes_in, bytes_out: of its frame and of the reply; 0: not known.
        """
        piece = self._ring.piece
        try:
            write_i64_le(piece, written_ns)
            write_i64_le(piece, received_ns)
            write_i64_le(piece, number)
            write_i64_le(piece, size)
            write_i64_le(piece, input_ns)
            write_i64_le(piece, infer_ns)
            write_i64_le(piece, output_ns)
            write_i64_le(piece, bytes_in)
            write_i64_le(piece, bytes_out)
        except ValueError:
            # The scheduler numbers batches as it likes.
            self._ring.drop()
            return
        self._ring.end(written_ns)

    def _read(self, data: bytes, _objects: list[Any]) -> Iterator[tuple[int, ExecutionRecord]]:
        model, version, instance = self._named
        for each in _RECORD.iter_unpack(data):
            written_ns, received_ns, number, size, input_ns, infer_ns, output_ns, *bytes_moved = (
                each
            )
            prepared_ns = received_ns + input_ns
            ran_ns = prepared_ns + infer_ns
            times = received_ns, prepared_ns, ran_ns, ran_ns + output_ns, written_ns
            yield (
                written_ns,
                ExecutionRecord(model, version, instance, number, size, *times, *bytes_moved),
            )
