"""Records of the batches of one instance, for timelines."""

# layout: compiled
# layout: not covered, tests of batch runners reach it

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from librt.strings import write_i64_le

from nereid.timeline.records import ExecutionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.timeline.recorder import Recorder
    from nereid.timeline.ring import PackedRing

# Fields: times when the reply was written and the batch received; number; size; durations of input,
# model and output phases; bytes of frame and reply.
_RECORD: Final = Struct("<9q")


class Executions:
    """Records of one instance's batches, in a ring buffer that belongs to the instance."""

    def __init__(self, recorder: Recorder, model: str, version: str, instance: str) -> None:
        self._named = model, version, instance
        self._recorder = recorder
        self._ring: PackedRing = recorder.add_packed_ring(ExecutionRecord, self._read)

    def close(self) -> None:
        """Remove the ring, since the instance will execute no more batches."""
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
        """Record a batch whose reply was written. bytes_in, bytes_out: 0 if unknown."""
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
            # A scheduler may use a number that does not fit into a signed 64-bit integer.
            self._ring.drop()
            return
        self._ring.end(written_ns)

    def _read(self, data: bytes, _objects: list[Any]) -> Iterator[tuple[int, ExecutionRecord]]:
        model, version, instance = self._named
        for record in _RECORD.iter_unpack(data):
            written_ns, received_ns, number, size, input_ns, infer_ns, output_ns, *bytes_moved = (
                record
            )
            prepared_ns = received_ns + input_ns
            ran_ns = prepared_ns + infer_ns
            times = received_ns, prepared_ns, ran_ns, ran_ns + output_ns, written_ns
            yield (
                written_ns,
                ExecutionRecord(model, version, instance, number, size, *times, *bytes_moved),
            )
