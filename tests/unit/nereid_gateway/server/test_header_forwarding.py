"""Which headers become parameters, and how they are spelt then."""

from __future__ import annotations

import pytest

from nereid.core.wire.messages import ErrorStatus, InferRequest
from nereid_gateway.server.header_forwarding import (
    CasePreservingHeaders,
    HeaderForwarding,
    checked,
)


@pytest.mark.parametrize(
    ("pattern", "headers", "expected"),
    [
        ("my.*|x-a", {b"My-Header": b"1", b"XMY": b"2", b"X-Ab": b"3", b"other": b"4"}, "123"),
        ("^my", {b"XMY": b"2", b"mY": b"\xc3\xa9\xff"}, "é\ufffd"),
        (".*", {b"triton_grpc_error": b"true"}, None),
        ("nothing", {b"My-Header": b"1"}, None),
    ],
)
def test_matches(pattern: str, headers: dict[bytes, bytes], expected: str | None) -> None:
    forwarding = HeaderForwarding(pattern)
    for _ in range(2):
        request = InferRequest(0, b"", [])
        forwarding.forward_headers(request, headers.items())
        found = request.parameters
        assert (found and "".join(map(str, found.values()))) == expected
        assert request.error_status is None


def test_a_header_beats_a_parameter_of_its_name() -> None:
    request = InferRequest(0, b"", [], parameters={"a": 1, "b": 2})
    HeaderForwarding("a").forward_headers(request, [("a", "x"), ("a", "y"), ("a-bin", b"z")])
    assert request.parameters == {"a": "y", "b": 2, "a-bin": "z"}


@pytest.mark.parametrize("name", ["triton_x", "sequence_id", "priority", "binary_data_output"])
def test_names_of_tritons_own_are_refused(name: str) -> None:
    request = InferRequest(0, b"", [])
    headers = [(name, "1"), ("triton-y", "1"), ("Priority", "u=1")]
    HeaderForwarding(".*").forward_headers(request, headers)
    assert request.error_status == ErrorStatus(
        3, f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    )


def test_names_that_never_repeat_cost_no_memory() -> None:
    forwarding = HeaderForwarding("a")
    for number in range(3000):
        forwarding.forward_headers(InferRequest(0, b"", []), [(f"a{number}", "x")])
    assert len(forwarding._matching) <= 1024


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a*+"])
def test_what_re2_does_not_take_is_a_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a pattern of RE2"):
        checked(pattern)


def test_copies_of_headers_remember_the_spelling() -> None:
    headers = CasePreservingHeaders()
    headers[b"a"] = headers.spelt[b"A"] = b"1"
    copy = headers.copy()
    assert (copy, copy.spelt) == ({b"a": b"1"}, {b"A": b"1"})
