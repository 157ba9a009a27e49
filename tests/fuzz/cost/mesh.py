"""What services send each other, and texts of operators: frames, cached values, configurations."""

from __future__ import annotations

from contextlib import suppress

from google.protobuf.message import DecodeError

from nereid.core.errors import NereidError
from nereid.core.wire.cache_messages import CacheReplyCodec, CacheRequestCodec
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.varint import encode_varint
from nereid.model_config import config_json, freeze_config, parse_config, validate_config
from nereid_gateway.fronts.grpc import wire_format
from nereid_gateway.fronts.http.json import parser, region_parameters
from tests.fuzz import config_text, mesh_frames
from tests.fuzz.cost.growing import Growing, Target


def _tagged(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _decode(data: bytes) -> None:
    for codec in (
        RequestCodec(lambda: 0.0),
        ResponseCodec(),
        CacheRequestCodec(),
        CacheReplyCodec(),
    ):
        with suppress(DecodeError, NereidError, ValueError):
            codec.decode(data)


FRAMES = Target(
    "frames between services",
    _decode,
    (
        Growing("empty items", b"\x0a\0"),
        Growing("empty items of another kind", b"\x12\0"),
        Growing("empty items of a third kind", b"\x1a\0"),
        Growing("items", _tagged(1, b"\x08\1" + _tagged(2, b"head"))),
        Growing("payloads", _tagged(3, b""), b"\x0a\xff\xff\x7f"),
        Growing("unknown numbers", b"\xf8\x3f\1"),
        Growing("unknown groups", b"\xfb\x3f"),
    ),
    words=(*mesh_frames.WORDS, b"\x0a\0", b"\x12\0", b"\x1a\0", b"\x22\0", b"\x08\1"),
    # Four decoders each, of an object for two bytes; only members of the mesh get here.
    steps_per_byte=400,
    memory_per_byte=1000,
    largest_bytes=1 << 20,
)


def _fields(data: bytes) -> None:
    with suppress(DecodeError):
        wire_format.split_tensors(memoryview(data))


FIELDS = Target(
    "fields of a request in a buffer",
    _fields,
    (
        Growing("raw contents", b"\x3a\0"),
        Growing("fields", b"\x0a\0"),
        Growing("numbers", b"\xf8\x3f\1"),
        Growing("a long number", b"\x80"),
        Growing("long numbers", b"\xf8\xff\xff\xff\x0f\1"),
    ),
    words=(b"\x3a\0", b"\x0a\0", b"\xf8\x3f\1", b"\x80", b"\x2a\0", b"\x3a\4abcd"),
    # A tuple of two numbers for two bytes.
    steps_per_byte=50,
    memory_per_byte=300,
)


def _region(data: bytes) -> None:
    """The parameters of a tensor in shared memory, as JSON."""
    with suppress(NereidError):
        parameters = parser.parse(data)
        if isinstance(parameters, dict):
            region_parameters.tensor_range(parameters)


REGIONS = Target(
    "references to shared memory",
    _region,
    (
        Growing("a name", b"r", b'{"shared_memory_byte_size":1,"shared_memory_region":"', b'"}'),
        Growing(
            "an offset",
            b"9",
            b'{"shared_memory_byte_size":1,"shared_memory_region":"r","shared_memory_offset":',
            b"}",
        ),
        Growing(
            "members",
            lambda number: b'"k%d":1,' % number,
            b'{"shared_memory_byte_size":1,"shared_memory_region":"r",',
            b'"k":1}',
        ),
    ),
)


def _config(data: bytes) -> None:
    with suppress(NereidError):
        config = parse_config(data.decode("utf-8", "replace"), model_name="m")
        validate_config(config)
        freeze_config(config)
        config_json(config)


_MODEL = b'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
_STEP = (
    b'step { model_name: "m%d" model_version: -1 input_map { key: "i" value: "x%d" } '
    b'output_map { key: "o" value: "x%d" } }\n'
)
CONFIG = Target(
    "config.pbtxt",
    _config,
    (
        Growing(
            "inputs",
            lambda number: b'input { name: "x%d" data_type: TYPE_FP32 dims: 1 }\n' % number,
            _MODEL,
        ),
        Growing("the same input", b'input { name: "x" data_type: TYPE_FP32 dims: 1 }\n', _MODEL),
        Growing(
            "dimensions",
            b"dims: 9223372036854775807 ",
            _MODEL + b'input { name: "x" data_type: TYPE_FP32 ',
            b"}",
        ),
        Growing(
            "a list of dimensions",
            b"1,",
            _MODEL + b'input { name: "x" data_type: TYPE_FP32 dims: [',
            b"1] }",
        ),
        Growing(
            "parameters",
            lambda number: b'parameters { key: "k%d" value { string_value: "v" } }\n' % number,
            _MODEL,
        ),
        Growing("instances", b"instance_group { count: 1 kind: KIND_CPU }\n", _MODEL),
        Growing("an instance group of many", b"9", _MODEL + b"instance_group { count: ", b" }"),
        Growing(
            "steps",
            lambda number: _STEP % (number, number, number + 1),
            b'name: "m" platform: "ensemble" ensemble_scheduling {',
            b"}",
        ),
        Growing(
            "preferred sizes",
            b"1, ",
            _MODEL + b"dynamic_batching { preferred_batch_size: [",
            b"1] }",
        ),
        Growing("comments", b"#\n", _MODEL),
        Growing("a comment", b"#", _MODEL),
        Growing("braces", b"dynamic_batching {", _MODEL),
        Growing("a string", b"\\377", _MODEL + b'default_model_filename: "', b'"'),
        Growing("strings to join", b'"a" ', _MODEL + b"default_model_filename: "),
        Growing("digits", b"9", _MODEL + b"max_batch_size: "),
        Growing("spaces", b" "),
    ),
    words=tuple(config_text.WORDS),
    # protobuf's text format is written in Python; only operators and repository loads get here.
    steps_per_byte=250,
    memory_per_byte=500,
    largest_bytes=1 << 18,
)
