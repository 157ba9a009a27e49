"""Requests of sequences, for the repository of sequence_repository.py."""

from __future__ import annotations

import json
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc
from tests.conformance.grpc_infer import parameter, request, tensor
from tests.conformance.http_infer import one
from tests.conformance.rows.python_models import levelled

INTEGER_MODELS: Final = ("direct", "oldest", "flat")


def parameters(which: Any, start: Any, end: Any, **more: Any) -> dict[str, Any]:
    found = {}
    if which is not None:
        kind = "string_param" if isinstance(which, str) else "int64_param"
        found["sequence_id"] = parameter(**{kind: which})
    if start is not None:
        found["sequence_start"] = parameter(bool_param=start)
    if end is not None:
        found["sequence_end"] = parameter(bool_param=end)
    return found | {key: parameter(int64_param=each) for key, each in more.items()}


def message_of(
    model: str,
    x: tuple[float, ...],
    which: Any,
    start: bool | None = None,
    end: bool | None = None,
    *,
    name: str = "",
    batch: int = 1,
    **more: Any,
) -> pb.ModelInferRequest:
    """The request of a sequence; name: of the request."""
    shape = (len(x),) if model.endswith("flat") else (batch, len(x) // batch)
    inputs = [tensor("X", "FP32", shape, fp32_contents=x)]
    return request(model, inputs, (), id=name, parameters=parameters(which, start, end, **more))


def rpc(*arguments: Any, **more: Any) -> Rpc:
    return Rpc("ModelInfer", message_of(*arguments, **more))


def document_of(model: str, x: float, parameters: dict[str, Any]) -> dict[str, Any]:
    document = one([x], (1,) if model.endswith("flat") else (1, 1), "FP32")
    document["inputs"][0]["name"] = "X"
    return {**document, "parameters": parameters}


def http_infer(model: str, x: float, **parameters: Any) -> Http:
    """Each parameter's name without its "sequence_"."""
    named = {
        f"sequence_{key}" if key in {"id", "start", "end"} else key: value
        for key, value in parameters.items()
    }
    body = json.dumps(document_of(model, x, named)).encode()
    return Http("POST", f"/v2/models/{model}/infer", body)


def sorted_by_id(response: Any) -> Any:
    """Responses of several sequences of one stream come in any order."""
    response = levelled(response)
    if "replies" in response:
        response["replies"].sort(key=lambda each: json.dumps(each, sort_keys=True))
    return response
