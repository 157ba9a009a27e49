"""Ring of the records of a gateway's requests for timelines, written on the hot path."""

# layout: compiled

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from librt.strings import write_i16_le, write_i64_le

from nereid.observability.tracing import is_sampled
from nereid.timeline.records import GatewayRequest
from nereid_gateway.core.request_head import HeadReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.timeline.recorder import Recorder
    from nereid.timeline.ring import PackedRing
    from nereid_gateway.core.request_record import RequestRecord

_MAX_ID: Final = 128
_HTTP: Final = "http"
_PROTOCOLS: Final = (_HTTP, "grpc", "stream")
# End, receipt, number, status, protocol, sizes of request id and trace id. Both ids follow the
# record.
_RECORD: Final = Struct("<4q3h")


class RequestRing:
    """Ring of one gateway's last requests."""

    def __init__(self, recorder: Recorder) -> None:
        self._ring: PackedRing = recorder.add_packed_ring(GatewayRequest, _read)
        self._heads = HeadReader()

    def add_record(self, record: RequestRecord) -> None:
        """Write the record of a request that has ended."""
        request = record.request
        ended_ns: int = record.ended_ns
        request_id = b""
        if request.request_id:
            request_id = request.request_id[:_MAX_ID].encode(errors="replace")
        trace_id = b""
        context = request.trace_context
        if context and is_sampled(context):
            # Compiled code cannot index bytes by a slice with a name.
            trace_id = context[1:17]
        ring = self._ring
        model, version, _ = self._heads.read(request.head)
        piece, objects = ring.piece, ring.objects
        write_i64_le(piece, ended_ns)
        write_i64_le(piece, record.received_ns)
        write_i64_le(piece, request.id)
        write_i64_le(piece, record.status)
        write_i16_le(piece, 2 if record.streamed else 0 if record.protocol == _HTTP else 1)
        write_i16_le(piece, len(request_id))
        write_i16_le(piece, len(trace_id))
        if request_id:
            piece.write(request_id)
        if trace_id:
            piece.write(trace_id)
        # Compiled code would create a tuple for each call that appends both.
        objects.append(model)
        objects.append(version)
        ring.end(ended_ns)


def _read(data: bytes, objects: list[Any]) -> Iterator[tuple[int, GatewayRequest]]:
    at = 0
    for model, version in zip(objects[::2], objects[1::2], strict=True):
        ended_ns, received_ns, number, status, protocol, *sizes = _RECORD.unpack_from(data, at)
        id_at = at + _RECORD.size
        trace_at = id_at + sizes[0]
        at = trace_at + sizes[1]
        yield (
            ended_ns,
            GatewayRequest(
                number,
                model,
                version,
                _PROTOCOLS[protocol],
                data[id_at:trace_at].decode(),
                data[trace_at:at].hex(),
                received_ns,
                ended_ns,
                status,
            ),
        )
