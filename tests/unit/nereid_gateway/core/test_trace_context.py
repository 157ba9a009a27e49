"""W3C traceparent to its binary form."""

from __future__ import annotations

import pytest

from nereid_gateway.core.trace_context import binary

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


PARENT = f"00-{TRACE}-{SPAN}-01"
LONG = "long=" + "x" * 200


def many_entries(count: int, value: str = "z" * 100) -> str:
    return ",".join(f"k{number}={value}" for number in range(count))


@pytest.mark.parametrize(
    ("state", "passed"),
    [
        ("a=1", "a=1"),
        (b"a=1", "a=1"),
        (" a=1 ,\tb@c=2,, ", "a=1,b@c=2"),
        ("1a@t=x y", "1a@t=x y"),
        ("", ""),
        (None, ""),
        # One invalid entry makes all of it invalid.
        ("a=1,b", ""),
        ("A=1", ""),
        ("a=1=2", ""),
        ("a=\u00fc", ""),
        (b"a=\xff", ""),
        (many_entries(33, "1"), ""),
        (many_entries(32, "1"), many_entries(32, "1")),
        # Of what is too long, long entries are left out first, then the last ones.
        (f"a=1,{LONG},{LONG.replace('l', 'm', 1)},b=2,c=" + "y" * 200, "a=1,b=2"),
        (many_entries(6), many_entries(4)),
    ],
)
def test_a_valid_tracestate_is_passed_on(state: str | bytes | None, passed: str) -> None:
    assert binary(PARENT, state) == binary(PARENT) + passed.encode()
    assert binary("nothing", state) == b""
