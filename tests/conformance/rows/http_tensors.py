"""HTTP infer beyond JSON: binary tensors, raw requests, outputs, codings, classification."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from tests.conformance.exchange import Http
from tests.conformance.http_infer import LENGTH, binary_input, infer, one, tensor
from tests.conformance.row import Row, grouped, row


def _outputs() -> Iterator[Row]:
    both = [tensor([1, 2, 3, 4], (1, 4)), {**tensor([5, 6, 7, 8], (1, 4)), "name": "INPUT1"}]
    for name, outputs in {
        "one": [{"name": "OUTPUT1"}], "both": [{"name": "OUTPUT0"}, {"name": "OUTPUT1"}], "none": [],
        "swapped": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}], "twice": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}],
        "unknown": [{"name": "OUTPUT7"}], "known-and-unknown": [{"name": "OUTPUT0"}, {"name": "X"}],
        "no-name": [{}], "name-number": [{"name": 1}], "name-null": [{"name": None}], "null": None, "object": {},
        "string": "OUTPUT0", "strings": ["OUTPUT0"], "null-inside": [None], "input-name": [{"name": "INPUT0"}],
    }.items():  # fmt: skip
        yield infer(name, "add_sub", {"inputs": both, "outputs": outputs})
    twice: tuple[dict[str, Any], ...] = (
        {},
        {"binary_data": True},
        {"binary_data": False},
        {"classification": 1},
    )
    for first in twice:
        for second in twice:
            wanted = [{"name": "OUTPUT0", "parameters": each} for each in (first, second)]
            name = f"twice-{json.dumps(first)}-{json.dumps(second)}"
            yield infer(name, "add_sub", {"inputs": both, "outputs": wanted})
    for name, parameters in {
        "binary": {"binary_data": True}, "not-binary": {"binary_data": False}, "binary-number": {"binary_data": 1},
        "binary-string": {"binary_data": "true"}, "binary-null": {"binary_data": None}, "unknown": {"x": 1}, "empty": {},
        "null": None, "array": [], "number": 1, "class": {"classification": 2}, "class-zero": {"classification": 0},
        "class-negative": {"classification": -1}, "class-string": {"classification": "1"}, "class-many": {"classification": 99},
        "class-binary": {"classification": 2, "binary_data": True},
    }.items():  # fmt: skip
        output = {"name": "OUTPUT0", "parameters": parameters}
        yield infer(f"parameters-{name}", "add_sub", {"inputs": both, "outputs": [output]})
        mixed: dict[str, Any] = {"inputs": both, "outputs": [{"name": "OUTPUT1"}, output]}
        mixed["parameters"] = {"binary_data_output": True}
        yield infer(f"parameters-{name}-all-binary", "add_sub", mixed)
    for value in (True, False, 1, "true", None):
        body = {"inputs": both, "parameters": {"binary_data_output": value}}
        yield infer(f"all-binary-{json.dumps(value)}", "add_sub", body)


def _binary() -> Iterator[Row]:
    eight = struct.pack("<2i", 1, 2)
    for name, size, content in (
        ("good", 8, eight), ("more-than-said", 8, eight + b"x"), ("less-than-said", 8, eight[:7]), ("none", 8, b""),
        ("size-small", 4, eight), ("size-large", 12, eight), ("size-zero", 0, b""), ("size-zero-with-data", 0, eight),
        ("size-negative", -1, eight), ("size-string", "8", eight), ("size-fraction", 8.5, eight), ("size-null", None, eight),
        ("size-true", True, eight), ("size-huge", 1 << 62, eight), ("size-2-64", 1 << 64, eight), ("size-not-whole", 7, eight[:7]),
    ):  # fmt: skip
        yield infer(name, "identity_int32", {"inputs": [binary_input(size)]}, content)
    bad = b"\2\0\0\0\xff\xfe\1\0\0\0a"
    for wanted in (True, False):
        document = {"inputs": [binary_input(len(bad), datatype="BYTES")]}
        parameters = {"parameters": {"binary_data_output": wanted}}
        yield infer(f"not-utf8-{wanted}", "identity_bytes", {**document, **parameters}, bad)
    for datatype in ("INT33", "FP32", ""):
        unknown = {"inputs": [binary_input(8, datatype=datatype)]}
        yield infer(f"datatype-{datatype}", "identity_int32", unknown, eight)
    both = {"inputs": [{**tensor([1, 2]), "parameters": {"binary_data_size": 8}}]}
    yield infer("data-and-size", "identity_int32", both, eight)
    good = json.dumps({"inputs": [binary_input(8)]}).encode()
    for value in ("0", "-1", "x", "", "0x10", "1", "7", str(len(good) - 1), str(len(good) + 1), str(len(good) + 8),
                  str(len(good) + 9), "99999999999", "99999999999999999999", f" {len(good)} ", f"+{len(good)}",
                  f"{len(good)}.0", f"{len(good)}x", f"0{len(good)}"):  # fmt: skip
        yield infer(
            f"header-{value.replace(str(len(good)), 'N')}",
            "identity_int32",
            good + eight,
            headers=((LENGTH, value),),
        )
    yield infer("header-missing", "identity_int32", good + eight)
    yield infer("header-with-json-alone", "identity_int32", one([1, 2]), b"")
    yield infer("json-then-nothing-to-take", "identity_int32", one([1, 2]), b"xy")
    texts = b"".join(struct.pack("<I", len(each)) + each for each in (b"a", b"bcd"))
    for name, content in {
        "good": texts, "cut": texts[:-1], "cut-length": texts[:6], "longer": texts + b"x", "third": texts + b"\0\0\0\0",
        "one": texts[:5], "empty": b"", "length-too-large": b"\xff\xff\xff\xff" + texts[4:], "zeros": bytes(8),
    }.items():  # fmt: skip
        document = {"inputs": [binary_input(len(content), datatype="BYTES")]}
        yield infer(f"bytes-{name}", "identity_bytes", document, content)
    for datatype, content in (("FP16", b"\0\x3c\0\xc0"), ("BF16", b"\x80\x3f\0\xc0"), ("BOOL", b"\1\0"), ("BOOL", b"\2\xff"),
                              ("FP64", struct.pack("<2d", 1.5, -2)), ("UINT8", b"\0\xff")):  # fmt: skip
        document = {"inputs": [binary_input(len(content), datatype=datatype)]}
        name = f"{datatype}-{content.hex()}"
        yield infer(f"{name}-json-reply", f"identity_{datatype.lower()}", document, content)
        document["parameters"] = {"binary_data_output": True}  # type: ignore[assignment]
        yield infer(f"{name}-binary-reply", f"identity_{datatype.lower()}", document, content)
    several = {
        "inputs": [
            {
                "name": "B",
                "shape": [2],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(texts)},
            },
            {"name": "C", "shape": [2], "datatype": "FP64", "data": [0.5, 1]},
            {"name": "A", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}},
        ],
        "outputs": [
            {"name": "C_out", "parameters": {"binary_data": True}},
            {"name": "A_out"},
            {"name": "B_out", "parameters": {"binary_data": True}},
        ],
    }
    yield infer("several", "several", several, texts + eight)
    yield infer("several-cut", "several", several, texts + eight[:-1])
    yield infer("several-longer", "several", several, texts + eight + b"x")
    yield infer("several-swapped", "several", several, eight + texts)


def _raw() -> Iterator[Row]:
    """Header length 0: the body is the only input."""
    zero = ((LENGTH, "0"),)
    for name, model, body in (
        ("ints", "identity_int32", struct.pack("<3i", 1, 2, 3)), ("ints-cut", "identity_int32", b"\1\0\0"),
        ("ints-empty", "identity_int32", b""), ("bytes", "identity_bytes", b"hello"), ("bytes-empty", "identity_bytes", b""),
        ("scalar", "scalar", struct.pack("<q", 5)), ("scalar-short", "scalar", b"1234"), ("scalar-long", "scalar", bytes(16)),
        ("fixed", "fixed", struct.pack("<6f", *range(6))), ("fixed-short", "fixed", bytes(20)),
        ("two-dynamic", "matrix_fp32", bytes(16)), ("two-inputs", "add_sub", bytes(16)), ("several", "several", bytes(4)),
        ("fp16", "identity_fp16", bytes(4)), ("bf16", "identity_bf16", bytes(4)), ("bool", "identity_bool", b"\1\0\1"),
        ("labelled", "labelled", bytes(16)), ("unknown", "nope", b"x"), ("bytes-two-dynamic", "matrix_bytes", b"x"),
    ):  # fmt: skip
        yield infer(name, model, body, headers=zero)
    yield infer("no-body", "identity_int32", b"")
    yield infer("no-body-unknown", "nope", b"")


def _status(response: Any) -> Any:
    return response["status"]


def _encodings() -> Iterator[Row]:
    good = json.dumps(one([1, 2])).encode()
    packed = {"gzip": gzip.compress(good, mtime=0), "deflate": zlib.compress(good)}
    for name, content in packed.items():
        for said in (name, name.upper(), f" {name}", f"{name}, identity"):
            yield infer(
                f"{said}-body", "identity_int32", content, headers=(("Content-Encoding", said),)
            )
    for said in ("identity", "br", "zstd", "", "x-gzip", "gzip, gzip"):
        yield infer(
            f"{said or 'empty'}-said", "identity_int32", good, headers=(("Content-Encoding", said),)
        )
    yield infer(
        "gzip-cut", "identity_int32", packed["gzip"][:-20], headers=(("Content-Encoding", "gzip"),)
    )
    yield infer("gzip-is-none", "identity_int32", good, headers=(("Content-Encoding", "gzip"),))
    yield infer("gzip-empty", "identity_int32", b"", headers=(("Content-Encoding", "gzip"),))
    for name, content in packed.items():
        encoded = (("Content-Encoding", name),)
        yield infer(f"{name}-and-more", "identity_int32", content + b"xyz", headers=encoded)
        wrong = content[: -8 if name == "gzip" else -4] + b"none" * (1 + (name == "gzip"))
        yield infer(f"{name}-wrong-checksum", "identity_int32", wrong, headers=encoded)
    yield infer(
        "gzip-is-deflate",
        "identity_int32",
        packed["deflate"],
        headers=(("Content-Encoding", "gzip"),),
    )
    for wanted in ("gzip", "deflate", "identity", "*", "br", "gzip;q=0", "gzip;q=0.5, deflate", "deflate, gzip", "gzip;q=x",
                   "gzip, identity;q=0", "identity;q=0", "GZIP", "", "gzip;q=0.5, deflate;q=0.5", "*;q=0", "br, gzip;q=0.1"):  # fmt: skip
        yield infer(
            f"accept-{wanted}", "identity_int32", good, headers=(("Accept-Encoding", wanted),)
        )
    for kind in ("application/json", "text/plain", "application/octet-stream", "x"):
        yield infer(
            f"content-type-{kind}", "identity_int32", good, headers=(("Content-Type", kind),)
        )
    chunked = (("Transfer-Encoding", "chunked"),)
    body = (
        b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (good[:9], good[9:]))
        + b"0\r\n\r\n"
    )
    yield infer("chunked", "identity_int32", body, headers=chunked)
    for coding, content in (*packed.items(), ("identity", good), ("br", good), ("gzip", good)):
        pieces = [content[start : start + 7] for start in range(0, len(content), 7)]
        whole = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces)
        name = f"chunked-{coding}{'-not' * (coding == 'gzip' and content is good)}"
        coded = (("Content-Encoding", coding), *chunked)
        for target in (
            "models/identity_int32/infer",
            "models/prompt/generate",
            "repository/index",
            "repository/models/nope/load",
            "repository/models/nope/unload",
            "trace/setting",
            "logging",
            "systemsharedmemory/region/r/register",
            "cudasharedmemory/region/r/register",
        ):
            request = Http("POST", f"/v2/{target}", whole + b"0\r\n\r\n", coded)
            # The reason in an index is the backend's own.
            view = _status if target.endswith("index") else None
            yield row(f"{name}-{target}", request, view=view)
    yield infer(
        "chunked-extension",
        "identity_int32",
        body.replace(b"9\r\n", b"9;a=b\r\n", 1),
        headers=chunked,
    )
    head = (
        b"POST /v2/models/identity_int32/infer HTTP/1.%d\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    )
    for minor in (0, 1):
        raw = head % (minor, len(good)) + good
        yield row(f"http-1.{minor}", Http("POST", raw=raw))
    yield row(
        "no-host", Http("POST", raw=(head % (1, len(good)) + good).replace(b"Host: x\r\n", b""))
    )


def _classification() -> Iterator[Row]:
    for model, datatype, values in (
        ("labelled", "FP32", [0.5, 3, -1, 2]), ("identity_int32", "INT32", [4, -9, 7, 7]), ("identity_uint8", "UINT8", [1, 200, 3, 4]),
        ("identity_int64", "INT64", [1 << 40, -1, 3, 4]), ("identity_fp64", "FP64", [0.1, 1e300, -1, 2]), ("identity_uint64", "UINT64", [1, 2, 3, (1 << 64) - 1]),
    ):  # fmt: skip
        for count in (1, 3, 4, 9):
            for binary in (False, True):
                wanted = {
                    "name": "OUTPUT0",
                    "parameters": {"classification": count, "binary_data": binary},
                }
                body = {**one(values, (1, 4), datatype), "outputs": [wanted]}
                yield infer(f"{model}-{count}{'-binary' * binary}", model, body)
        wanted = {"name": "OUTPUT0", "parameters": {"classification": 2}}
        yield infer(
            f"{model}-batch", model, {**one(values[:2] * 4, (2, 4), datatype), "outputs": [wanted]}
        )
    wanted = {"name": "OUTPUT0", "parameters": {"classification": 2}}
    yield infer(
        "nan",
        "labelled",
        {**one([float("nan"), 1, 2, float("inf")], (1, 4), "FP32"), "outputs": [wanted]},
    )
    yield infer("ties", "labelled", {**one([1, 1, 1, 1], (1, 4), "FP32"), "outputs": [wanted]})
    yield infer("matrix", "matrix_fp32", {**one([4, 3, 9, 1], (2, 2), "FP32"), "outputs": [wanted]})
    yield infer(
        "bool", "identity_bool", {**one([True, False], (1, 2), "BOOL"), "outputs": [wanted]}
    )
    for datatype in ("FP16", "BF16"):
        body = {"inputs": [binary_input(4, datatype=datatype)], "outputs": [wanted]}
        yield infer(datatype, f"identity_{datatype.lower()}", body, b"\0\x3c\0\xc0")


def rows() -> Iterator[Row]:
    yield from grouped("http/outputs", _outputs())
    yield from grouped("http/binary", _binary())
    yield from grouped("http/raw", _raw())
    yield from grouped("http/encoding", _encodings())
    yield from grouped("http/classification", _classification())
