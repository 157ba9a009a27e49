"""Plans of `nereid perf` for models that no server has, and what their requests say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tritonclient.grpc import service_pb2

from nereid_perf.inputs.plan import InputPlan, ModelPlan
from nereid_perf.inputs.signature import ModelSignature, TensorSpec
from nereid_perf.request import Request


def signature(*inputs: TensorSpec, **more: Any) -> ModelSignature:
    outputs = tuple(replace(each, name=f"{each.name}_OUT") for each in inputs)
    return ModelSignature(**{"inputs": inputs, "outputs": outputs, **more})


def model(*inputs: TensorSpec, name: str = "m", **more: Any) -> ModelPlan:
    """more: of the plan; is_sequence, max_batch_size and the like: of the signature."""
    of_signature: dict[str, Any] = {
        key: more.pop(key)
        for key in ("max_batch_size", "is_sequence", "has_text_ids")
        if key in more
    }
    if "outputs_of_model" in more:
        of_signature["outputs"] = more.pop("outputs_of_model")
    return ModelPlan(name, signature=signature(*inputs, **of_signature), **more)


def plan(*models: ModelPlan, protocol: Any = "grpc", **more: Any) -> InputPlan:
    return InputPlan(protocol, models, **more)


def grpc_message(request: Request) -> Any:
    """Return the request as NVIDIA's client reads it."""
    return service_pb2.ModelInferRequest.FromString(request.message)


def http_document(request: Request) -> tuple[dict[str, Any], bytes]:
    """The JSON, and the binary tensors behind it."""
    size = request.json_bytes or len(request.message)
    return json.loads(request.message[:size]), request.message[size:]


def sequence_of(request: Request) -> tuple[int | str, bool, bool]:
    """Id, start and end of a gRPC request."""
    parameters = grpc_message(request).parameters
    identity = parameters["sequence_id"]
    return (
        identity.string_param or identity.int64_param,
        parameters["sequence_start"].bool_param,
        parameters["sequence_end"].bool_param,
    )
