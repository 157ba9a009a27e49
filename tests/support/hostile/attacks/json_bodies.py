"""Bodies that are dear to parse, as JSON or on the way to tensors."""

from __future__ import annotations

import json

from tests.support.hostile.attack import ENDED, REFUSED, SERVED, Attack
from tests.support.hostile.sending import INFER, UNKNOWN, http_body

_MIB = 1 << 20


def _with_data(data: bytes, shape: bytes = b"[1,1]", datatype: bytes = b"FP32") -> bytes:
    return b'{"inputs":[{"name":"INPUT0","datatype":"%b","shape":%b,"data":%b}]}' % (
        datatype,
        shape,
        data,
    )


def _numbers(size: int) -> bytes:
    count = size // 8
    return _with_data(b"[" + b",".join([b"1234.25"] * count) + b"]", b"[1,%d]" % count)


def _binary(size: int) -> bytes:
    header = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1, size // 4],
                "datatype": "FP32",
                "parameters": {"binary_data_size": size},
            }
        ]
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return text.ljust(_HEADER_BYTES) + b"\0\0\x9a\x3f" * (size // 4)


_HEADER_BYTES = 200
_LENGTH = f"Inference-Header-Content-Length: {_HEADER_BYTES}"


def _strings(count: int) -> bytes:
    return _with_data(b"[" + b",".join([b'""'] * count) + b"]", b"[1,%d]" % count, b"BYTES")


def _binary_strings(size: int) -> bytes:
    text = b'{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"BYTES",' % (size // 4)
    text += b'"parameters":{"binary_data_size":%d}}]}' % size
    return text.ljust(_HEADER_BYTES) + bytes(size)


def _missing_comma(size: int) -> bytes:
    return _with_data(b"[" + b'"[]{}",' * (size // 7) + b"1 1]")


def _objects(count: int) -> bytes:
    members = b",".join(b'"k%d":%d' % (number, number) for number in range(count))
    return b'{"inputs":[],"parameters":{%b}}' % members


def _inputs(count: int) -> bytes:
    one = b'{"name":"INPUT0","datatype":"FP32","shape":[0],"data":[]}'
    return b'{"inputs":[%b]}' % b",".join([one] * count)


def _outputs(count: int) -> bytes:
    names = b",".join(b'{"name":"o%d"}' % number for number in range(count))
    return _numbers(8)[:-1] + b',"outputs":[%b]}' % names


ATTACKS = (
    Attack(
        "JSON 61 kB of minus signs", http_body(lambda: b"[" + b"-" * 61_000 + b"NaN]"), nightly=True
    ),
    Attack("JSON 231 kB of minus signs", http_body(lambda: b"[" + b"-" * 231_000 + b"NaN]")),
    Attack(
        "JSON 4 MB of Infs",
        http_body(lambda: b"[" + b"-Inf,-NaN," * 400_000 + b"--NaN]"),
        nightly=True,
    ),
    Attack("JSON 1 MB of brackets", http_body(lambda: b"[" * _MIB), nightly=True),
    Attack("JSON deep objects", http_body(lambda: b'{"a":' * 200_000), nightly=True),
    Attack("JSON deep data", http_body(lambda: _with_data(b"[" * 400_000 + b"1" + b"]" * 400_000))),
    Attack(
        "JSON nested within limits",
        http_body(
            lambda: _with_data(b"[" + (b"[" * 90 + b"1" + b"]" * 90 + b",") * 20_000 + b"1]")
        ),
        ENDED,
        nightly=True,
    ),
    Attack(
        "JSON 1 MB of digits",
        http_body(lambda: _with_data(b"[" + b"9" * _MIB + b"]")),
        nightly=True,
    ),
    Attack(
        "JSON long fractions",
        http_body(lambda: _with_data(b"[" + (b"0." + b"1" * 4000 + b",") * 1000 + b"NaN]")),
        ENDED,
        nightly=True,
    ),
    Attack(
        "JSON exponents",
        http_body(lambda: _with_data(b"[" + b"1e-999999999," * 80_000 + b"1e999999999]")),
        nightly=True,
    ),
    Attack("JSON 16 MB of numbers", http_body(lambda: _numbers(16 * _MIB)), SERVED, more_mib=300),
    Attack(
        "JSON 16 MB to an unknown model",
        http_body(lambda: _numbers(16 * _MIB), UNKNOWN),
        REFUSED,
        nightly=True,
    ),
    Attack("JSON 8 MB without a comma", http_body(lambda: _missing_comma(8 * _MIB))),
    Attack("JSON 8 MB unterminated", http_body(lambda: b'["' + b"\\u0041" * _MIB), nightly=True),
    Attack("JSON 8 MB cut off", http_body(lambda: _numbers(8 * _MIB)[:-3]), nightly=True),
    Attack(
        "JSON 8 MB of NaN",
        http_body(lambda: _with_data(b"[" + b"NaN," * (2 * _MIB) + b"0]")),
        nightly=True,
    ),
    Attack("JSON 8 MB of spaces", http_body(lambda: b" " * (8 * _MIB)), nightly=True),
    Attack(
        "JSON 8 MB of broken UTF-8",
        http_body(lambda: b'["' + b"\xff" * (8 * _MIB) + b'"]'),
        nightly=True,
    ),
    Attack("JSON 200,000 parameters", http_body(lambda: _objects(200_000)), nightly=True),
    Attack("JSON 100,000 inputs", http_body(lambda: _inputs(100_000))),
    Attack("JSON 100,000 outputs", http_body(lambda: _outputs(100_000)), nightly=True),
    Attack(
        "JSON 525 kB of huge dimensions",
        http_body(
            lambda: _with_data(b"[]", b"[%b]" % b",".join([b"9223372036854775807"] * 26_000))
        ),
    ),
    Attack(
        "JSON huge dimensions, binary data",
        http_body(
            lambda: (
                b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%b],"parameters":'
                b'{"binary_data_size":0}}]}' % b",".join([b"9223372036854775807"] * 26_000)
            )
        ),
        nightly=True,
    ),
    Attack(
        "JSON 10 million empty strings to an unknown model",
        http_body(lambda: _strings(10_000_000), UNKNOWN),
    ),
    Attack(
        "32 MB of empty strings to an unknown model",
        http_body(lambda: _binary_strings(32 * _MIB), UNKNOWN, _LENGTH),
    ),
    Attack(
        "32 MB of empty strings to a model of numbers",
        http_body(lambda: _binary_strings(32 * _MIB), INFER, _LENGTH),
        nightly=True,
    ),
    Attack(
        "4 million strings to a model of strings",
        http_body(lambda: _strings(4_000_000), INFER.replace("fp32", "bytes")),
        ENDED,
        more_mib=400,
        nightly=True,
    ),
    Attack(
        "8 MB of empty binary strings to a model of strings, answered as JSON",
        http_body(lambda: _binary_strings(8 * _MIB), INFER.replace("fp32", "bytes"), _LENGTH),
        ENDED,
        more_mib=400,
        nightly=True,
    ),
    Attack(
        "16 MB binary, answered as JSON",
        http_body(lambda: _binary(16 * _MIB), INFER, _LENGTH),
        SERVED,
        more_mib=400,
    ),
    Attack(
        "generate with deep JSON",
        http_body(lambda: b'{"x":' + b"[" * 400_000, INFER.replace("/infer", "/generate")),
        nightly=True,
    ),
    Attack(
        "generate with minus signs",
        http_body(lambda: b"[" + b"-" * 61_000 + b"NaN]", INFER.replace("/infer", "/generate")),
    ),
    Attack(
        "generate with 8 MB of numbers",
        http_body(
            lambda: b'{"INPUT0":[' + b"1," * (4 * _MIB) + b"1]}",
            INFER.replace("/infer", "/generate_stream"),
        ),
        ENDED,
        more_mib=200,
        nightly=True,
    ),
)
