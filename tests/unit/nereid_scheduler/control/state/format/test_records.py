"""Records: whatever is damaged is noticed, at each byte."""

import json

import pytest

from nereid_scheduler.control.state.format import records
from nereid_scheduler.control.state.format.records import (
    DamagedRecord,
    NewerRecord,
    Record,
    decode_record,
    encode_record,
    head_of,
    record_name,
)

KEY = "model/../ä b\n"
RECORD = Record(KEY, {"loaded": True, "files": {"1/model.onnx": "00"}})
NAME = record_name(KEY)


def test_a_record_is_read_as_it_was_written() -> None:
    data = encode_record(RECORD)
    assert decode_record(NAME, data) == RECORD
    assert data.startswith(head_of(data))
    assert head_of(data).endswith(b"\n")
    assert NAME.isalnum()


def test_a_record_that_is_truncated_anywhere_is_damaged() -> None:
    data = encode_record(RECORD)
    for length in range(len(data)):
        with pytest.raises(DamagedRecord):
            decode_record(NAME, data[:length])


def test_a_record_with_any_byte_changed_is_damaged() -> None:
    data = encode_record(RECORD)
    for place in range(len(data)):
        for change in (1, 0x80):
            changed = bytearray(data)
            changed[place] ^= change
            with pytest.raises(DamagedRecord):
                decode_record(NAME, bytes(changed))


def test_bytes_at_its_end_are_damage() -> None:
    with pytest.raises(DamagedRecord):
        decode_record(NAME, encode_record(RECORD) + b" ")


def test_a_record_under_anothers_name_is_damaged() -> None:
    with pytest.raises(DamagedRecord, match="another's"):
        decode_record(record_name("other"), encode_record(RECORD))


def test_who_does_not_have_the_secret_writes_nothing_that_is_read() -> None:
    data = encode_record(RECORD, b"secret")
    assert decode_record(NAME, data, b"secret") == RECORD
    for other in (b"", b"other"):
        with pytest.raises(DamagedRecord):
            decode_record(NAME, data, other)


def test_a_newer_record_is_known_from_a_damaged_one() -> None:
    newer = as_of_schema(2, b"what is to come")
    with pytest.raises(NewerRecord, match="schema 2"):
        decode_record(NAME, newer)
    with pytest.raises(DamagedRecord):
        decode_record(NAME, newer + b"!")


def as_of_schema(schema: int, body: bytes) -> bytes:
    return records._head(schema, body, b"") + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"7",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"key": 1, "document": {}}).encode(),
        json.dumps({"key": KEY}).encode(),
        json.dumps({"key": KEY, "document": []}).encode(),
    ],
    ids=["empty", "list", "no key", "number", "bytes", "deep", "key", "no document", "document"],
)
def test_what_was_never_a_record_is_damaged_with_a_good_checksum(content: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(NAME, as_of_schema(1, content))


@pytest.mark.parametrize("head", [b"x", b"x\n", b"nereid-state\n", b"nereid-state one x\n"])
def test_what_does_not_begin_as_records_do_is_damaged(head: bytes) -> None:
    with pytest.raises(DamagedRecord, match="begin"):
        decode_record(NAME, head)
    with pytest.raises(DamagedRecord, match="begin"):
        decode_record(NAME, b"nereid-state " + b"9" * 5000 + b" x\n")
