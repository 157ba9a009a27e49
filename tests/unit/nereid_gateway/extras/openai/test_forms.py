"""Forms with files: what clients send, and what is none."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.forms import parse_form

TYPE = b"multipart/form-data; boundary=xx"


def part(name: str, content: str) -> str:
    return f'--xx\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{content}\r\n'


@given(st.binary(), st.text(st.characters(codec="utf-8", exclude_characters='"\r\n\\')))
def test_forms_of_a_client(content: bytes, text: str) -> None:
    files = {"file": ("a.wav", content, "audio/wav")}
    request = httpx.Request("POST", "http://x", data={"model": text}, files=files)
    expected = {"model": text.encode(), "file": content}
    assert parse_form(request.headers["content-type"].encode(), request.read()) == expected


@given(st.binary() | st.lists(st.sampled_from([b"--xx", b"\r\n", b"--", b":", b"a"])).map(b"".join))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    with suppress(InvalidArgument):
        parse_form(TYPE, body)


@pytest.mark.parametrize(
    ("content_type", "body", "problem"),
    [
        (b"application/json", "{}", "expects multipart/form-data"),
        (b"multipart/form-data", part("a", "b") + "--xx--", "with a boundary"),
        (b"multipart/form-data" + b";" * 60_000 + b"boundary=xx", "", "with a boundary"),
        (TYPE, "", "not complete"),
        (TYPE, part("a", "b"), "not complete"),
        (TYPE, "text" + part("a", "b") + "--xx--", "text before"),
        (TYPE, "".join(part(str(number), "") for number in range(40)) + "--xx--", "more than 32"),
        (TYPE, part("a", "b") * 2 + "--xx--", "a name of its own"),
        (TYPE, part("a", "b").replace("name=", "other=") + "--xx--", "a name of its own"),
        (TYPE, part("a" * 9000, "b") + "--xx--", "a name of its own"),
        (TYPE, "--xx\r\nno head\r\n--xx--", "a name of its own"),
    ],
)
def test_what_is_no_form_is_refused(content_type: bytes, body: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_form(content_type, body.encode())
