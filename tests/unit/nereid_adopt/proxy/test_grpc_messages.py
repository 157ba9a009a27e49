"""Messages that arrive in one piece, beside the reader of messages in any pieces."""

import struct

import pytest

from nereid_adopt.proxy.grpc_messages import Messages, whole_message


@pytest.mark.parametrize("size", [0, 1, 5, 300, 70_000])
def test_a_whole_message_is_what_the_reader_finds(size: int) -> None:
    content = struct.pack(">BI", 0, size) + bytes(range(256)) * (size // 256) + bytes(size % 256)
    found: list[bytes] = []
    messages = Messages(found.append, 1 << 20)
    messages.begin(None)
    messages.feed(content)
    assert [whole_message(content)] == found


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0\0", b"\1\0\0\0\1x", b"\0\0\0\0\2x", b"\0\0\0\0\1xy"]
)
def test_other_content_needs_the_reader(content: bytes) -> None:
    assert whole_message(content) is None
