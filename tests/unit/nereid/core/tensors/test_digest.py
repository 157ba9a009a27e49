"""Equal digests if and only if inputs and parameters are equal."""

from typing import Any

import pytest

from nereid.core.tensors.digest import DIGEST_BYTES, digest, digest_of_parts, layout_of
from nereid.pb import kserve_pb2
from tests.support.scheduler.xxh3_collision import colliding_payloads

Input = tuple[str, str, list[int]]

KEY = b"k" * 32
FIRST, SECOND = ("I", "FP32", [1, 4]), ("J", "UINT8", [2])


def digest_of(
    inputs: tuple[Input, ...] = (FIRST, SECOND),
    payloads: tuple[bytes, ...] = (b"abcd", b"ef"),
    parameters: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = (),
    name: str = "m",
    version: str = "",
    key: bytes = KEY,
) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name=name, model_version=version)
    for tensor, datatype, shape in inputs:
        message.inputs.add(name=tensor, datatype=datatype, shape=shape)
    for tensor in outputs:
        message.outputs.add(name=tensor)
    return digest(layout_of(message, key), parameters, payloads)


@pytest.mark.parametrize(
    "more",
    [
        {"inputs": (("I", "FP32", [4, 1]), SECOND)},
        {"inputs": (("I", "INT32", [1, 4]), SECOND)},
        {"inputs": (("K", "FP32", [1, 4]), SECOND)},
        {"inputs": (FIRST,), "payloads": (b"abcd",)},
        {"payloads": (b"abcde", b"f")},
        {"payloads": (b"abcdef", b"")},
        {"payloads": (b"ef", b"abcd")},
        {"inputs": (SECOND, FIRST)},
        {"parameters": {"a": 1}},
    ],
)
def test_what_affects_the_response_changes_the_digest(more: dict[str, Any]) -> None:
    assert len(digest_of(**more)) == DIGEST_BYTES
    assert digest_of(**more) != digest_of()


def test_parameters_of_different_types_differ() -> None:
    values = (1, 1.0, True, "1", -1)
    assert len({digest_of(parameters={"a": value}) for value in values}) == len(values)


@pytest.mark.parametrize(
    "more",
    [
        {"inputs": (SECOND, FIRST), "payloads": (b"ef", b"abcd")},
        {"outputs": ("O",)},
        {"version": "1"},
        {"name": "n"},
    ],
)
def test_what_does_not_affect_the_response_is_left_out(more: dict[str, Any]) -> None:
    assert digest_of(**more) == digest_of()


def test_the_key_changes_every_digest() -> None:
    assert digest_of(key=b"l" * 32) != digest_of()


def test_what_collided_on_purpose_collides_no_more() -> None:
    head = kserve_pb2.ModelInferRequest(inputs=[{"name": "I", "datatype": "FP32", "shape": [128]}])
    layout = layout_of(head, KEY)
    one, other = colliding_payloads(head, 512)
    assert one != other
    assert digest(layout, None, [one]) != digest(layout, None, [other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"inputs": (("IJ", "FP32", [1]),)}, {"inputs": (("I", "JFP32", [1]),)}),
        ({"parameters": {"a": "b", "c": "d"}}, {"parameters": {"a": "b', 'c': 'd"}}),
        ({"parameters": {"a": 1}, "payloads": (b"",)}, {"payloads": (b"[('a', 1)]",)}),
        ({"payloads": (b"\0" * 8,)}, {"payloads": (b"",)}),
        ({"payloads": (b"a" * 10_000,)}, {"payloads": (b"a" * 9_999,)}),
    ],
)
def test_no_byte_can_be_moved_to_another_part(one: dict[str, Any], other: dict[str, Any]) -> None:
    single: dict[str, Any] = {"inputs": (("I", "FP32", [1]),), "payloads": (b"x",)}
    assert digest_of(**{**single, **one}) != digest_of(**{**single, **other})


def test_large_payloads_count_as_their_bytes_as_well() -> None:
    large = (b"a" * 20_000, b"b" * 3)
    assert digest_of(payloads=large) == digest_of(payloads=tuple(map(memoryview, large)))  # type: ignore[arg-type]
    swapped = (large[1], large[0])
    assert digest_of(inputs=(SECOND, FIRST), payloads=swapped) == digest_of(payloads=large)


def test_parts_of_a_name_are_framed() -> None:
    names = [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (b"ab",), (b"b", b"a")]
    assert len({digest_of_parts(KEY, *parts) for parts in names}) == len(names)


def test_the_order_of_parameters_does_not_count() -> None:
    assert digest_of(parameters={"a": 1, "b": 2}) == digest_of(parameters={"b": 2, "a": 1})


def test_views_count_as_their_bytes() -> None:
    layout = layout_of(kserve_pb2.ModelInferRequest(inputs=[{"name": "I"}]), KEY)
    assert digest(layout, None, [memoryview(b"abc")]) == digest(layout, None, [b"abc"])
