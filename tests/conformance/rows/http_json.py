"""HTTP infer with JSON bodies: documents, data, shapes, inputs, parameters, models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.exchange import Http
from tests.conformance.http_infer import infer, one, tensor
from tests.conformance.row import Row, grouped, row, without_texts


def _json() -> Iterator[Row]:
    """What the document looks like."""
    good = json.dumps(one([1, 2])).encode()
    texts = {
        "brace": b"{", "bracket": b"[", "empty-object": b"{}", "empty-array": b"[]", "null": b"null",
        "number": b"1", "string": b'"x"', "true": b"true", "letter": b"x", "space": b" ",
        "two-documents": good + good, "trailing-space": good + b" \r\n\t", "trailing-letter": good + b"x",
        "trailing-nul": good + b"\0", "nul-and-more": good + b"\0x", "byte-order-mark": b"\xef\xbb\xbf" + good,
        "trailing-comma": b'{"inputs":[],}', "no-colon": b'{"inputs"[]}', "single-quotes": b"{'inputs':[]}",
        "number-key": b"{1:2}", "comment": b'{/*x*/"inputs":[]}', "open-string": b'{"inputs',
        "bad-escape": b'{"inputs":"\\x"}', "bad-utf8": b'{"inputs":[],"id":"\xff"}',
        "control-character": b'{"id":"\n","inputs":[]}', "bad-number": b'{"inputs":01}',
        "bad-number-2": b'{"inputs":1.}', "bad-number-3": b'{"inputs":1e}', "huge-number": b'{"inputs":1e999}',
        "bad-literal": b'{"inputs":nul}', "surrogate": b'{"id":"\\ud800","inputs":[]}', "utf16": good.decode().encode("utf-16"),
        "inputs-null": b'{"inputs":null}', "inputs-object": b'{"inputs":{}}', "inputs-string": b'{"inputs":"x"}',
        "inputs-number": b'{"inputs":1}', "inputs-empty": b'{"inputs":[]}', "input-null": b'{"inputs":[null]}',
        "input-number": b'{"inputs":[1]}', "input-string": b'{"inputs":["x"]}', "input-array": b'{"inputs":[[]]}',
        "input-empty": b'{"inputs":[{}]}', "outputs-only": b'{"outputs":[]}',
        "inputs-twice": b'{"inputs":[],' + good[1:], "unknown-member": b'{"x":1,' + good[1:],
    }  # fmt: skip
    for name, text in texts.items():
        yield infer(name, "identity_int32", text)
    for name, value in {
        "string": "a", "empty": "", "number": 7, "negative": -7, "fraction": 1.5, "null": None, "true": True,
        "array": [], "object": {}, "long": "x" * 300, "unicode": "é€😀", "quotes": 'a"b\\c\n', "nul": "a\0b",
    }.items():  # fmt: skip
        yield infer(f"id-{name}", "identity_int32", one([1, 2], id=value))
        yield infer(f"id-{name}-bad", "identity_int32", one([1, 2, 3], id=value))
    yield infer("data-low-surrogate", "identity_bytes", one(["\udc00"], (1, 1), "BYTES"))
    for field in ("name", "shape", "datatype", "data"):
        whole = one([1, 2])
        del whole["inputs"][0][field]
        yield infer(f"no-{field}", "identity_int32", whole)
        for value in (None, 1, -1, 1.5, "x", "", True, [], {}, [1], [[]], ["x"], [None]):
            changed = one([1, 2])
            changed["inputs"][0][field] = value
            yield infer(f"{field}-{json.dumps(value)}", "identity_int32", changed)


def _data() -> Iterator[Row]:
    """JSON values of each datatype."""
    integers = {
        "zero": 0,
        "one": 1,
        "fraction": 1.5,
        "whole": 2.0,
        "string": "1",
        "true": True,
        "null": None,
    }
    integers |= {"negative": -1, "power": 1e2, "array": [1], "object": {}}
    for datatype in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"):
        bits = int(datatype.removeprefix("U").removeprefix("INT"))
        edges = {"min": -(1 << bits - 1), "max": (1 << bits - 1) - 1, "2-64": 1 << 64, "1e30": 1e30}
        edges |= {"below": -(1 << bits - 1) - 1, "above": 1 << bits - 1}
        edges |= {"unsigned-max": (1 << bits) - 1, "unsigned-above": 1 << bits}
        for name, value in {**integers, **edges}.items():
            yield infer(
                f"{datatype}-{name}", f"identity_{datatype.lower()}", one([value], (1, 1), datatype)
            )
    for name, value in integers.items():
        yield infer(f"BOOL-{name}", "identity_bool", one([value], (1, 1), "BOOL"))
        yield infer(f"BYTES-{name}", "identity_bytes", one([value], (1, 1), "BYTES"))
    for datatype in ("FP32", "FP64"):
        floats = {
            **integers,
            "tenth": 0.1,
            "large": 1e30,
            "larger": 1e300,
            "tiny": 1e-320,
            "minus-zero": -0.0,
        }
        floats |= {
            "nan": float("nan"),
            "infinity": float("inf"),
            "minus-infinity": float("-inf"),
            "u64": 1 << 63,
        }
        for name, value in floats.items():
            yield infer(
                f"{datatype}-{name}", f"identity_{datatype.lower()}", one([value], (1, 1), datatype)
            )
        for text in ("Inf", "-Inf", "nan", "+1", "1e5", "-NaN"):
            body = f'{{"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"{datatype}","data":[{text}]}}]}}'
            yield infer(f"{datatype}-text-{text}", f"identity_{datatype.lower()}", body.encode())
    for datatype in ("FP16", "BF16"):
        yield infer(f"{datatype}-in", f"identity_{datatype.lower()}", one([1.5], (1, 1), datatype))
    for name, text in {
        "empty": "",
        "unicode": "é€😀",
        "nul": "a\0b",
        "long": "x" * 5000,
        "quote": '"\\/\b',
    }.items():
        yield infer(f"BYTES-{name}", "identity_bytes", one([text], (1, 1), "BYTES"))
    document: Any
    for name, document in {
        "flat": [1, 2, 3, 4], "nested": [[1, 2], [3, 4]], "mixed": [[1, 2], 3, 4], "deep": [[[[[1, 2]]], 3], 4],
        "wrong-split": [[1], [2, 3, 4]], "empty-arrays": [[], [1, 2], [], [3, 4]], "few": [1, 2, 3], "many": [1, 2, 3, 4, 5],
        "none": [], "nested-few": [[1, 2], [3]], "nested-many": [[1, 2], [3, 4, 5]], "strings": ["1", "2", "3", "4"],
        "one-string": [1, 2, 3, "4"], "object": {"0": 1}, "scalar": 1, "text": "1,2,3,4",
        "deepest": _nested([1, 2, 3, 4], 98), "too-deep": _nested([1, 2, 3, 4], 99), "too-deep-mixed": [_nested(1, 99), 2, 3, 4],
    }.items():  # fmt: skip
        yield infer(f"form-{name}", "identity_int32", one(document, (2, 2)))
        if name not in {"strings", "one-string"}:
            yield infer(
                f"form-bytes-{name}", "matrix_bytes", one(_as_text(document), (2, 2), "BYTES")
            )


def _nested(data: Any, lists: int) -> Any:
    for _ in range(lists):
        data = [data]
    return data


def _as_text(data: Any) -> Any:
    if isinstance(data, list):
        return [_as_text(each) for each in data]
    return str(data) if isinstance(data, int) else data


def _shapes() -> Iterator[Row]:
    value: Any
    data = list(range(1, 7))
    for shape in ([1, 6], [6, 1], [2, 3], [6], [], [1, 1, 6], [0, 6], [1, 0], [0, 0], [1, -1], [-1, 6], [9, 1],
                  [1, 1.0], [1, 6.5], [1, "6"], [1, None], [1, [6]], [1, True], [1, 1 << 40], [1, (1 << 63) - 1]):  # fmt: skip
        yield infer(f"batched-{json.dumps(shape)}", "identity_int32", one(data, shape))
        yield infer(f"plain-{json.dumps(shape)}", "matrix_fp32", one(data, shape, "FP32"))
        yield infer(f"fixed-{json.dumps(shape)}", "fixed", one(data, shape, "FP32"))
        yield infer(f"bytes-{json.dumps(shape)}", "matrix_bytes", one(["x"] * 6, shape, "BYTES"))
        for name, value in {"string": "x", "null": None, "wrong": ["x"], "object": {}}.items():
            if shape in ([1, 0], []):
                yield infer(f"no-elements-{name}-{shape}", "matrix_fp32", one(value, shape, "FP32"))
    for shape in ([1, 0], [0, 1], [0, 0]):
        yield infer(f"empty-batched-{json.dumps(shape)}", "identity_int32", one([], shape))
        yield infer(f"empty-plain-{json.dumps(shape)}", "matrix_fp32", one([], shape, "FP32"))
        yield infer(f"empty-bytes-{json.dumps(shape)}", "matrix_bytes", one([], shape, "BYTES"))
    yield infer("batch-largest", "identity_int32", one(list(range(8)), [8, 1]))
    yield infer("batch-too-large", "identity_int32", one(list(range(9)), [9, 1]))


def _inputs() -> Iterator[Row]:
    """Which inputs are there."""
    value: Any
    left = tensor([1, 2, 3, 4], (1, 4))
    right = {**tensor([5, 6, 7, 8], (1, 4)), "name": "INPUT1"}
    two = {**tensor([1, 2, 3, 4, 5, 6, 7, 8], (2, 4)), "name": "INPUT1"}
    for name, inputs in {
        "both": [left, right], "swapped": [right, left], "first": [left], "second": [right], "none": [],
        "twice": [left, left], "three": [left, right, {**left, "name": "INPUT2"}], "thrice": [left, right, left],
        "other": [left, {**right, "name": "OTHER"}], "empty-name": [left, {**right, "name": ""}],
        "batches-differ": [left, two], "other-type": [left, {**right, "datatype": "FP32"}],
        "unknown-type": [left, {**right, "datatype": "INT33"}], "lower-type": [left, {**right, "datatype": "int32"}],
        "string-type": [left, {**right, "datatype": "STRING"}], "type-prefix": [left, {**right, "datatype": "TYPE_INT32"}],
        "shapes-differ": [left, tensor([1], (1, 1), name="INPUT1")],
        "other-rank": [left, tensor([1, 2, 3, 4], (4,), name="INPUT1")],
    }.items():  # fmt: skip
        yield infer(name, "add_sub", {"inputs": inputs})
    for version in ("1", "2", "3", "4"):
        body = json.dumps(one([1, 2], (2,))).encode()
        yield row(
            f"version-{version}",
            Http("POST", f"/v2/models/versions/versions/{version}/infer", body),
        )
    yield infer("latest-version", "versions", one([1, 2], (2,)))
    yield infer("malformed-for-unknown", "nope", b"{")
    yield infer("malformed-for-broken", "broken", b"{", view=without_texts)
    yield infer(
        "nonsense-in-input", "identity_int32", {"inputs": [{**tensor([1, 2]), "x": {"y": [1]}}]}
    )
    for value in (
        None,
        1,
        "x",
        [],
        {},
        {"x": 1},
        {"x": None},
        {"x": []},
        {"x": {}},
        {"content_type": "a"},
    ):
        changed = {**tensor([1, 2]), "parameters": value}
        yield infer(f"parameters-{json.dumps(value)}", "identity_int32", {"inputs": [changed]})


def _parameters() -> Iterator[Row]:
    value: Any
    values: tuple[Any, ...] = (
        True,
        False,
        0,
        1,
        -1,
        1.5,
        "x",
        "",
        "1",
        None,
        [],
        {},
        [1],
        (1 << 63) - 1,
        1 << 63,
        (1 << 64) - 1,
        1 << 64,
    )
    for key in ("sequence_start", "sequence_end", "priority", "timeout", "other"):
        for value in values:
            yield infer(
                f"{key}-{json.dumps(value)}", "identity_int32", one([1, 2], parameters={key: value})
            )
    for value in (*values[:8], *values[9:]):
        yield infer(
            f"sequence_id-{json.dumps(value)}",
            "identity_int32",
            one([1, 2], parameters={"sequence_id": value}),
        )
    for key in ("triton_x", "triton_enable_empty_final_response", "headers", "", "a b", "id", "é"):
        yield infer(f"key-{key}", "identity_int32", one([1, 2], parameters={key: 1}))
    for value in (None, 1, "x", [], {}, [1]):
        yield infer(f"all-{json.dumps(value)}", "identity_int32", one([1, 2], parameters=value))
    sequence = {"sequence_id": 5, "sequence_start": True, "sequence_end": True}
    yield infer("sequence", "identity_int32", one([1, 2], parameters=sequence))
    yield infer(
        "sequence-text",
        "identity_int32",
        one([1, 2], parameters={**sequence, "sequence_id": "five"}),
    )


def _models() -> Iterator[Row]:
    """What models do."""
    yield infer("fails", "fail", one([5000], (1,), "INT64"), view=without_texts)
    yield infer("works", "fail", one([5], (1,), "INT64"))
    yield infer("fails-with-id", "fail", one([5000], (1,), "INT64", id="7"), view=without_texts)
    expired = one([1], (1, 1), "INT64", parameters={"timeout": 1})
    yield infer("slow-with-timeout-idle", "slow", expired, view=_either)
    yield infer("batched", "batched", one([1, 2, 3, 4], (2, 2)))


def _either(response: Any) -> Any:
    """An idle queue may be quicker than a microsecond, or not."""
    return (
        "served or expired"
        if isinstance(response, dict) and response["status"] in {200, 503}
        else response
    )


def rows() -> Iterator[Row]:
    yield from grouped("http/json", _json())
    yield from grouped("http/data", _data())
    yield from grouped("http/shape", _shapes())
    yield from grouped("http/inputs", _inputs())
    yield from grouped("http/parameters", _parameters())
    yield from grouped("http/model", _models())
