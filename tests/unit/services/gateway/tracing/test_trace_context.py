"""W3C traceparent to its binary form."""

from __future__ import annotations

import pytest

from nereid.services.gateway.tracing.trace_context import binary

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "text", [f"00-{TRACE}-{SPAN}-01", f"  00-{TRACE}-{SPAN}-01 ", f"cc-{TRACE}-{SPAN}-01-later"]
)
def test_valid(text: str) -> None:
    expected = bytes.fromhex("00" + TRACE + SPAN + "01")
    assert binary(text) == expected
    assert binary(text.encode()) == expected
    assert len(expected) == 26


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_invalid_is_ignored(text: str) -> None:
    assert binary(text) == b""


def test_bytes_that_are_no_text_are_ignored() -> None:
    assert binary(b"\xff" * 55) == b""
