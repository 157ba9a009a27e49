"""A batch on the wire."""

from nereid.core.wire.messages import InferRequest
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.instances.remote_instance import batch_message
from nereid_scheduler.core.requests.entry import Batch
from tests.support.scheduler.samples import entry_of


def test_a_batch_message_has_all_fields_of_its_members() -> None:
    plain, full = entry_of(), entry_of()
    plain.request = InferRequest(1, b"plain", [b"abc"])
    full.request = InferRequest(
        2,
        b"full",
        [SharedMemory("segment", 8, 16), b""],
        request_id="mine",
        parameters={"a": 1, "b": "two", "c": True, "d": 0.5},
        priority=3,
        timeout_us=4,
        deadline=10.0,
        trace_context=b"\x00" * 26,
    )
    message = pb.Batch.FromString(batch_message(7, Batch([plain, full], 2, "full"), 9_750_000_000))
    assert message.id == 7
    first, second = message.members
    assert (first.head, first.payloads[0].inline) == (b"plain", b"abc")
    assert (first.remaining_us, first.request_id, len(first.parameters)) == (0, "", 0)
    assert second.payloads[0].shared_memory.segment_name == "segment"
    assert second.payloads[1].WhichOneof("place") == "inline"
    assert (second.request_id, second.remaining_us) == ("mine", 250_000)
    assert second.parameters["b"].string_param == "two"
    assert second.trace_context == b"\x00" * 26
