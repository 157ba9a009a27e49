"""Makes rows of HTTP infer requests."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.conformance.exchange import Http
from tests.conformance.row import Row, row

LENGTH: Final = "Inference-Header-Content-Length"


def infer(name: str, model: str, body: Any, binary: bytes | None = None, **more: Any) -> Row:
    """One infer request; body: a document, or JSON text as it is; binary: what follows it."""
    headers: tuple[tuple[str, str], ...] = more.pop("headers", ())
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    if binary is not None:
        headers = ((LENGTH, str(len(text))), *headers)
    target = f"/v2/models/{model}/infer"
    return row(name, Http("POST", target, text + (binary or b""), headers), **more)


def tensor(data: Any, shape: Any = (1, 2), datatype: Any = "INT32", name: Any = "INPUT0") -> Any:
    found = {"name": name, "shape": list(shape), "datatype": datatype, "data": data}
    return {key: each for key, each in found.items() if each is not None}


def one(data: Any, shape: Any = (1, 2), datatype: Any = "INT32", **more: Any) -> dict[str, Any]:
    """A document with one input."""
    return {"inputs": [tensor(data, shape, datatype)], **more}


def binary_input(size: Any, shape: Any = (1, 2), datatype: str = "INT32") -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {**tensor(None, shape, datatype), "parameters": parameters}
