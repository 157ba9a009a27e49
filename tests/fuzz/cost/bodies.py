"""Requests' bodies: JSON documents, infer requests of both protocols, compressed bodies."""

from __future__ import annotations

from contextlib import suppress

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import NereidError
from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.grpc.infer_codec import GrpcDecoder
from nereid_gateway.fronts.http.endpoints import generate_schema
from nereid_gateway.fronts.http.inference.infer_request import InferRequestDecoder
from nereid_gateway.fronts.http.json import parser
from nereid_scheduler.core.models.override_json import parse_object
from tests.fuzz import infer_grpc, infer_json
from tests.fuzz.cost.growing import Growing, Target
from tests.support.gateway.decoding import decode_grpc, decode_http

_DATA = b'{"inputs":[{"name":"x","shape":[1],"datatype":"%b","data":['
_INPUT = b'{"name":"x","shape":[0],"datatype":"FP32","data":[]},'
_BINARY = b'{"name":"x","shape":[0],"datatype":"BYTES","parameters":{"binary_data_size":0}},'


def _parse(data: bytes) -> None:
    with suppress(NereidError):
        parser.parse(data)


def _decode_http(data: bytes) -> None:
    decoder = InferRequestDecoder("m", "1", BoundedCache(16))
    decode_http(decoder, data, len(data))


def _decode_binary(data: bytes) -> None:
    """The header is what ends with the first NUL."""
    decoder = InferRequestDecoder("m", "1", BoundedCache(16))
    decode_http(decoder, data, data.find(b"\0") + 1)


_METADATA = kserve_pb2.ModelMetadataResponse(name="m")
_METADATA.inputs.add(name="x", datatype="BYTES", shape=[-1])


def _decode_generate(data: bytes) -> None:
    with suppress(NereidError):
        generate_schema.decode_request(data, "m", "", _METADATA)


def _decode_grpc(data: bytes) -> None:
    with suppress(NereidError):
        decode_grpc(GrpcDecoder(), data)


def _read_override(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        parse_object(data.decode("utf-8", "replace"))


OVERRIDE = Target(
    "override",
    _read_override,
    (
        Growing("escaped quotation marks", b'\\"', b'{"'),
        Growing("escaped quotation marks, and half an escape", b'\\"', b'{"', b"\\"),
        Growing("quotation marks of both kinds", b"'\"", b"{"),
        Growing("letters", b"a", b"{"),
        Growing("names", b"a:1,", b"{", b"}"),
        Growing("names, and spaces", b"a   "),
        Growing("commas", b",", b"{a:[1"),
        Growing("commas and spaces", b",   "),
        Growing("brackets and spaces", b"[   "),
        Growing("numbers with a point", b"1.,", b"[", b"x]"),
        Growing("spaces", b" ", b"{a"),
    ),
    words=(b"'", b'"', b"\\", b",", b":", b"{", b"[", b"]", b"}", b"a", b"1.", b"\v", b"true"),
    # A few objects of Python's for each token, of what may be read so.
    steps_per_byte=60.0,
    memory_per_byte=400.0,
    largest_bytes=1 << 18,
)
JSON = Target(
    "json",
    _parse,
    (
        Growing("minus signs", b"-", b"[", b"NaN]"),
        Growing("minus signs, each before a number", b"-1,", b"[", b"NaN]"),
        Growing("misspelt infinities", b"-Inf,-NaN,Inf,", b"[", b"--NaN]"),
        Growing("brackets", b"["),
        Growing("objects within objects", b'{"a":'),
        Growing("arrays within arrays", b"[" * 500 + b"]" * 500 + b",", b"[", b"1]"),
        Growing("digits", b"9", b"[", b"]"),
        Growing("digits beside NaN", b"9", b"[NaN,", b"]"),
        Growing("long numbers beside NaN", b"9" * 300 + b",", b"[NaN,", b"1]"),
        Growing("fractions beside NaN", b"0." + b"1" * 100 + b",", b"[NaN,", b"1]"),
        Growing("numbers", b"1234.25,", b"[", b"1]"),
        Growing("numbers, and no end", b"1234.25,", b"["),
        Growing("numbers, and a comma missing", b"1234.25,", b"[", b"1 1]"),
        Growing("strings of brackets, and a comma missing", b'"[]{}",', b"[", b"1 1]"),
        Growing("escapes, and no end", b"\\u0041", b'["'),
        Growing("backslashes", b"\\", b'["'),
        Growing("quotation marks", b'"', b"["),
        Growing("empty strings", b'"",', b"[", b'""]'),
        Growing("empty arrays", b"[],", b"[", b"1]"),
        Growing("empty objects, and NaN", b"{},", b"[", b"NaN]"),
        Growing("members", lambda number: b'"k%d":1,' % number, b"{", b'"k":1}'),
        Growing("the same member", b'"k":1,', b"{", b'"k":NaN}'),
        Growing("spaces", b" "),
        Growing("NULs", b"\0"),
        Growing("NaN", b"NaN,", b"[", b"1]"),
        Growing("broken UTF-8", b"\xff", b'["', b'"]'),
        Growing("surrogates", b"\\ud800", b'["', b'"]'),
        Growing("byte-order marks", b"\xef\xbb\xbf"),
        Growing("beginnings of words", b"nul", b"["),
    ),
    words=(*infer_json.WORDS, b"NaN", b"-Inf", b"\\", b'"', b"{", b"-", b"."),
    # A nested list of one element takes some 64 bytes, and two of text.
    memory_per_byte=200,
)
HTTP = Target(
    "http infer",
    _decode_http,
    (
        Growing("numbers", b"1.25,", _DATA % b"FP32", b"1]}]}"),
        Growing("half numbers", b"1.25,", _DATA % b"FP16", b"1]}]}"),
        Growing("whole numbers", b"1,", _DATA % b"INT8", b"1]}]}"),
        Growing("booleans", b"true,", _DATA % b"BOOL", b"1]}]}"),
        Growing("numbers of no type", b"1,", _DATA % b"NONE", b"1]}]}"),
        Growing("strings", b'"",', _DATA % b"BYTES", b'""]}]}'),
        Growing("strings as numbers", b'"",', _DATA % b"FP32", b'""]}]}'),
        Growing("nested data", b"[[1],[1]],", _DATA % b"FP32", b"[[1]]]}]}"),
        Growing("deep data", b"[" * 200 + b"1" + b"]" * 200 + b",", _DATA % b"FP32", b"1]}]}"),
        Growing(
            "dimensions",
            b"9223372036854775807,",
            b'{"inputs":[{"name":"x","datatype":"FP32","data":[],"shape":[',
            b"1]}]}",
        ),
        Growing(
            "dimensions of strings",
            b"9223372036854775807,",
            b'{"inputs":[{"name":"x","datatype":"BYTES","data":[],"shape":[',
            b"1]}]}",
        ),
        Growing(
            "small dimensions",
            b"1,",
            b'{"inputs":[{"name":"x","datatype":"FP32","data":[1],"shape":[',
            b"1]}]}",
        ),
        Growing("inputs", _INPUT, b'{"inputs":[', _INPUT[:-1] + b"]}"),
        Growing(
            "outputs",
            lambda number: b'{"name":"o%d"},' % number,
            b'{"inputs":[],"outputs":[',
            b'{"name":"o"}]}',
        ),
        Growing(
            "the same output",
            b'{"name":"o","parameters":{"classification":1}},',
            b'{"inputs":[],"outputs":[',
            b'{"name":"o"}]}',
        ),
        Growing(
            "parameters",
            lambda number: b'"k%d":1,' % number,
            b'{"inputs":[],"parameters":{',
            b'"k":1}}',
        ),
        Growing("an id", b"x", b'{"id":"', b'","inputs":[]}'),
        Growing("spaces before the id", b" ", b"{", b'"id":"a","inputs":[]}'),
        Growing("a name", b"n", b'{"inputs":[{"name":"', b'","shape":[1],"datatype":"FP32"}]}'),
    ),
    words=tuple(infer_json.WORDS),
    memory_per_byte=200,
    steps_per_byte=25,
)
GENERATE = Target(
    "http generate",
    _decode_generate,
    (
        Growing("strings", b'"",', b'{"x":[', b'""]}'),
        Growing("colons", b":", b'{"x":"', b'"}'),
        Growing("members", lambda number: b'"k%d":1,' % number, b"{", b'"k":1}'),
        Growing("the same parameter", b'"k":1,', b"{", b'"k":1}'),
        Growing("the same parameter, below", b'"k":1,', b'{"parameters":{', b'"k":1}}'),
        Growing("the same input", b'"x":"a",', b"{", b'"x":"b"}'),
        Growing("parameters again", b'"parameters":{"a":1,"a":1},', b"{", b'"x":"b"}'),
        Growing("objects", b'{"a":1,"a":1},', b'{"x":[', b'{}],"a":1,"a":1}'),
        Growing("strings of members", b'\\"a\\":1,', b'{"x":"', b'","x":1}'),
    ),
    words=(*infer_json.WORDS, b'"parameters":{', b'"x":', b'"k":1,'),
    memory_per_byte=200,
    steps_per_byte=25,
)
BINARY = Target(
    "http infer, binary",
    _decode_binary,
    (
        Growing(
            "empty strings",
            bytes(4),
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES",'
            b'"parameters":{"binary_data_size":4000000}}]}\n\0',
        ),
        Growing("inputs", _BINARY, b'{"inputs":[', _BINARY[:-1] + b"]}\n\0"),
        Growing(
            "dimensions",
            b"9223372036854775807,",
            b'{"inputs":[{"name":"x","datatype":'
            b'"BYTES","parameters":{"binary_data_size":0},"shape":[',
            b"1]}]}\0",
        ),
    ),
    steps_per_byte=25,
)


def _tensor(datatype: bytes, shape: bytes = b"\1", contents: bytes = b"") -> bytes:
    parts = b"\x0a\1x\x12" + bytes((len(datatype),)) + datatype + _tagged(3, shape)
    return parts + (_tagged(5, contents) if contents else b"")


def _tagged(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


class _GrowingTensor(Growing):
    """A request with one input, whose contents or shape grow."""

    def make(self, size: int) -> bytes:
        name, _, packed = self.name.partition(" of field ")
        content = Growing("", self.fragment).make(size)
        number = int(packed)
        datatype = self.start
        if name == "shape":
            tensor, rest = _tensor(datatype, content), self.end
        elif name == "packed":
            tensor, rest = _tensor(datatype, contents=_tagged(number, content)), self.end
        else:
            tensor, rest = _tensor(datatype, contents=content), self.end
        return b"\x0a\1m" + _tagged(5, tensor) + rest


_HUGE = b"\xff" * 8 + b"\x7f"
_RAW = b"\x3a\4" + bytes(4)
GRPC = Target(
    "grpc infer",
    _decode_grpc,
    (
        _GrowingTensor("shape of field 3", _HUGE, b"FP32", _RAW),
        _GrowingTensor("shape of field 3", _HUGE, b"BYTES", _RAW),
        _GrowingTensor("shape of field 3", b"\1", b"BYTES", _RAW),
        _GrowingTensor("packed of field 1", b"\1", b"BOOL"),
        _GrowingTensor("packed of field 2", b"\1", b"INT8"),
        _GrowingTensor("packed of field 3", b"\1", b"INT64"),
        _GrowingTensor("packed of field 6", bytes(4), b"FP32"),
        _GrowingTensor("packed of field 7", bytes(8), b"FP64"),
        _GrowingTensor("loose of field 2", b"\x10\1", b"INT32"),
        _GrowingTensor("loose of field 4", b"\x20\1", b"UINT32"),
        _GrowingTensor("strings of field 8", b"\x42\0", b"BYTES"),
        _GrowingTensor("strings of field 8", b"\x42\1a", b"BYTES"),
        Growing("raw contents", b"\x3a\0", b"\x0a\1m"),
        Growing("raw contents of an input", b"\x3a\0", b"\x0a\1m" + _tagged(5, _tensor(b"FP32"))),
        Growing("empty inputs", b"\x2a\0", b"\x0a\1m"),
        Growing("inputs", _tagged(5, _tensor(b"FP32")), b"\x0a\1m"),
        Growing("empty outputs", b"\x32\0", b"\x0a\1m"),
        Growing("outputs", lambda number: _tagged(6, _tagged(1, b"o%d" % number)), b"\x0a\1m"),
        Growing(
            "parameters",
            lambda number: _tagged(4, _tagged(1, b"k%d" % number) + b"\x12\2\x10\1"),
            b"\x0a\1m",
        ),
        Growing("unknown numbers", b"\xf8\x3f\1", b"\x0a\1m"),
        Growing("unknown groups", b"\xfb\x3f", b"\x0a\1m"),
        Growing("unknown bytes", b"\xfa\x3f\0", b"\x0a\1m"),
        Growing("the model's name, again and again", b"\x0a\1m"),
        Growing("an id", b"i", b"\x0a\1m"),
        Growing(
            "strings, empty and raw",
            bytes(4),
            b"\x0a\1m" + _tagged(5, _tensor(b"BYTES")) + b"\x3a\x80\x80\x40",
        ),
    ),
    words=(*infer_grpc.WORDS, b"\x3a\0", b"\x42\0", b"\x2a\0", b"\x32\0", b"\x1a\1", _HUGE),
    steps_per_byte=25,
    memory_per_byte=150,
)
