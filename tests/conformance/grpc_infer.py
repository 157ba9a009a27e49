"""Makes ModelInfer requests, and rows of them."""

from __future__ import annotations

import struct
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Rpc
from tests.conformance.row import Row, row

TWO: Final = struct.pack("<2i", 1, 2)


def tensor(
    name: str = "INPUT0",
    datatype: str = "INT32",
    shape: tuple[int, ...] = (1, 2),
    parameters: dict[str, Any] | None = None,
    **contents: Any,
) -> pb.ModelInferRequest.InferInputTensor:
    found = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(found.contents, field).extend(values)
    for key, value in (parameters or {}).items():
        found.parameters[key].CopyFrom(value)
    return found


def request(
    model: str = "identity_int32", inputs: Any = None, raw: Any = (TWO,), **more: Any
) -> pb.ModelInferRequest:
    """One infer request; without inputs: a good one for identity_int32."""
    parameters = more.pop("parameters", {})
    outputs = [
        each
        if not isinstance(each, str)
        else pb.ModelInferRequest.InferRequestedOutputTensor(name=each)
        for each in more.pop("outputs", ())
    ]
    found = pb.ModelInferRequest(
        model_name=model,
        model_version=more.pop("version", ""),
        id=more.pop("id", ""),
        inputs=[tensor()] if inputs is None else inputs,
        outputs=outputs,
        raw_input_contents=raw,
    )
    for key, value in parameters.items():
        found.parameters[key].CopyFrom(value)
    return found


def parameter(**value: Any) -> pb.InferParameter:
    return pb.InferParameter(**value)


def output(name: str, **parameters: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    found = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        found.parameters[key].CopyFrom(value)
    return found


def infer(name: str, *arguments: Any, metadata: Any = (), **more: Any) -> Row:
    view = more.pop("view", None)
    return row(name, Rpc("ModelInfer", request(*arguments, **more), metadata), view=view)
