"""Frames put together from bytes say what frames made from message objects say."""

from collections.abc import Sequence
from typing import Any

import pytest

from nereid.core.wire.messages import InferRequest
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.instances.remote_instance import batch_message
from nereid_scheduler.core.requests.batch_frame import member_layout, plain_batch_frame
from nereid_scheduler.core.requests.entry import Batch, Entry, ValidHead
from tests.support.scheduler.samples import NoOwner, no_response

_NOW_NS = 5_000_000_000


def _entry(
    payloads: Sequence[Any], *, head: bytes = b"head", member: Any = None, **more: Any
) -> Entry:
    sizes = [0 if isinstance(each, SharedMemory) else len(each) for each in payloads]
    valid = ValidHead(1, (), tuple(sizes), (), layout=member_layout(head, sizes))
    fields: dict[str, Any] = {"id": (7 << 40) + 300, **more}
    request = InferRequest(head=head, payloads=list(payloads), **fields)
    return Entry(request, valid, no_response, NoOwner(), 0, member=member)


_PLAIN = {
    "one": [_entry([b"abcd"])],
    "several": [_entry([b"abcd"]), _entry([b"efgh"], head=b"other"), _entry([b"a" * 300])],
    "inputs": [_entry([b"abcd", b"", b"xyz"])],
    "ids": [_entry([b"x"], id=number) for number in (0, 1, 127, 128, 16384, (1 << 60) + 5)],
    "request_id": [_entry([b"x"], request_id="r\u00e9")],
    "long_request_id": [_entry([b"x"], request_id="r" * 500)],
    "deadline": [_entry([b"x"], deadline=6.5), _entry([b"x"], deadline=4.0)],
    "timeout": [_entry([b"x"], timeout_us=(1 << 64) - 1, deadline=5.001)],
    "large": [_entry([b"x" * 70_000], head=b"h" * 400)],
}
_SPECIAL = {
    "parameters": [_entry([b"x"]), _entry([b"x"], parameters={"a": 1})],
    "trace": [_entry([b"x"], trace_context=b"t")],
    "sequence": [_entry([b"x"], member=object())],
    "shared_memory": [_entry([SharedMemory("1.2.3", 0, 4)])],
    "no_inputs": [_entry([])],
}


@pytest.mark.parametrize("entries", _PLAIN.values(), ids=_PLAIN)
def test_plain_batches_are_the_same_message(entries: list[Entry]) -> None:
    batch = Batch(entries, len(entries), "full")
    frame = plain_batch_frame(300, batch, _NOW_NS)
    assert frame is not None
    expected = pb.Batch.FromString(batch_message(300, batch, _NOW_NS))
    assert pb.Batch.FromString(frame) == expected


@pytest.mark.parametrize("entries", _SPECIAL.values(), ids=_SPECIAL)
def test_others_are_left_to_message_objects(entries: list[Entry]) -> None:
    assert plain_batch_frame(1, Batch(entries, len(entries), "full"), _NOW_NS) is None


def test_sizes_that_vary_have_no_layout() -> None:
    assert member_layout(b"head", [4, None]) is None
