"""HTTP generate and generate_stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.exchange import Http
from tests.conformance.row import Row, grouped, row, without_texts


def _generate() -> Iterator[Row]:
    documents: dict[str, Any] = {
        "good": {"text": "hello", "count": 3}, "id": {"id": "7", "text": "hello", "count": 3}, "array": {"text": ["hello"], "count": [3]},
        "missing": {"text": "hello"}, "extra": {"text": "a", "count": 1, "temperature": 0.5}, "none": {}, "bool": {"text": "a", "count": True},
        "string-for-int": {"text": "a", "count": "1"}, "int-for-string": {"text": 1, "count": 1}, "null": {"text": None, "count": 1},
        "object": {"text": {}, "count": 1}, "nested": {"text": [["a"]], "count": 1}, "two": {"text": ["a", "b"], "count": 1},
        "empty-array": {"text": [], "count": 1}, "parameters": {"text": "a", "count": 1, "parameters": {"x": 1, "y": "z"}},
        "tensor-in-parameters": {"text": "a", "parameters": {"count": 1}}, "parameters-number": {"text": "a", "count": 1, "parameters": 1},
        "id-number": {"id": 7, "text": "a", "count": 1}, "fraction": {"text": "a", "count": 1.5}, "unknown-null": {"text": "a", "count": 1, "x": None},
        "unknown-array": {"text": "a", "count": 1, "x": [1]}, "unknown-object": {"text": "a", "count": 1, "x": {}}, "reserved": {"text": "a", "count": 1, "triton_x": 1},
        "sequence": {"text": "a", "count": 1, "sequence_id": 1}, "timeout": {"text": "a", "count": 1, "timeout": 1000000}, "array-itself": [], "text-itself": "x",
        "both": {"text": "a", "count": 1, "parameters": {"count": 2}}, "mixed-array": {"text": ["a"], "count": ["x"]},
    }  # fmt: skip
    for kind in ("generate", "generate_stream"):
        for name, document in documents.items():
            yield row(
                f"{kind}-{name}",
                Http("POST", f"/v2/models/prompt/{kind}", json.dumps(document).encode()),
            )
        for name, body in {
            "twice": b'{"text":"a","text":"b","count":1}',
            "twice-apart": b'{"text":"a","count":1,"text":"b"}',
            "twice-escaped": b'{"text":"a","\\u0074ext":"b","count":1}',
            "twice-the-last-is-wrong": b'{"text":"a","text":5,"count":1}',
            "twice-the-first-is-wrong": b'{"text":5,"text":"b","count":1}',
            "twice-the-id": b'{"id":"1","id":"2","text":"a","count":1}',
            "twice-with-an-id": b'{"id":"1","text":"a","text":"b","count":1}',
            "twice-a-parameter": b'{"text":"a:b","count":1,"x":1,"x":[]}',
            "twice-a-wrong-parameter": b'{"text":"a","count":1,"x":[],"x":1}',
            "twice-below": b'{"text":"a","parameters":{"count":1,"count":2}}',
            "twice-parameters": b'{"text":"a","parameters":{"count":1},"parameters":{"x":2}}',
        }.items():
            yield row(f"{kind}-{name}", Http("POST", f"/v2/models/prompt/{kind}", body))
        for name, body in {"malformed": b"{", "empty": b"", "letter": b"x"}.items():
            yield row(f"{kind}-{name}", Http("POST", f"/v2/models/prompt/{kind}", body))
        good = json.dumps(documents["good"]).encode()
        yield row(f"{kind}-unknown", Http("POST", f"/v2/models/nope/{kind}", good))
        yield row(f"{kind}-version", Http("POST", f"/v2/models/prompt/versions/1/{kind}", good))
        yield row(f"{kind}-no-version", Http("POST", f"/v2/models/prompt/versions/2/{kind}", good))
        encoded = Http("POST", f"/v2/models/prompt/{kind}", good, (("Content-Encoding", "gzip"),))
        yield row(f"{kind}-encoding", encoded)
        yield row(
            f"{kind}-fails",
            Http("POST", f"/v2/models/fail/{kind}", b'{"INPUT0":5000}'),
            view=without_texts,
        )
        yield row(f"{kind}-scalar", Http("POST", f"/v2/models/scalar/{kind}", b'{"INPUT0":5}'))
        yield row(
            f"{kind}-fixed", Http("POST", f"/v2/models/fixed/{kind}", b'{"INPUT0":[1,2,3,4,5,6]}')
        )
        yield row(
            f"{kind}-matrix", Http("POST", f"/v2/models/matrix_fp32/{kind}", b'{"INPUT0":[1,2,3]}')
        )
        yield row(
            f"{kind}-batched",
            Http("POST", f"/v2/models/identity_int32/{kind}", b'{"INPUT0":[1,2,3]}'),
        )
        yield row(
            f"{kind}-bytes",
            Http("POST", f"/v2/models/identity_bytes/{kind}", b'{"INPUT0":["a","b"]}'),
        )
        yield row(
            f"{kind}-empty-bytes",
            Http("POST", f"/v2/models/identity_bytes/{kind}", b'{"INPUT0":[]}'),
        )
        for datatype, value in (
            ("bool", "true"),
            ("fp16", "1.5"),
            ("bf16", "1.5"),
            ("uint64", str((1 << 64) - 1)),
            ("int8", "300"),
            ("fp32", "NaN"),
            ("fp64", "0.1"),
        ):
            yield row(
                f"{kind}-type-{datatype}",
                Http(
                    "POST",
                    f"/v2/models/identity_{datatype}/{kind}",
                    f'{{"INPUT0":{value}}}'.encode(),
                ),
            )


def rows() -> Iterator[Row]:
    yield from grouped("http/generate", _generate())
