"""Requests for texts: the tensors of a prompt and of the parameters of sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson

from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.text.generation import SAMPLING_PARAMETERS
from nereid_gateway.core import request_head
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_head import HeadInput
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.tokenizer import Tokens

if TYPE_CHECKING:
    from nereid.core.wire.messages import Parameter, Payload
    from nereid.text.generation import Generation, GenerationInput
    from nereid_gateway.extras.openai.generation.sampling import Sampling
    from nereid_gateway.extras.openai.texts.text_models import TextModel

_MAX_SEED: Final = (1 << 63) - 1


class Prompt(NamedTuple):
    """A prompt as its model takes it: text, or token ids."""

    text: str
    ids: tuple[int, ...] | None
    # 0 if the number is unknown.
    tokens: int

    @property
    def size_bytes(self) -> int:
        """Approximate size."""
        return len(self.text) + 8 * len(self.ids or ())


def build_request(
    model: TextModel, prompt: Prompt, sampling: Sampling, index: int
) -> ClientRequest:
    """Return the request for one text. index: its number among those of the same prompt.

    Raises InvalidParameter for a value that does not fit its tensor.
    """
    generation = model.generation
    values = dict(sampling.values)
    if sampling.max_tokens and generation.takes("max_tokens"):
        values["max_tokens"] = sampling.max_tokens
    if sampling.stop and generation.takes("stop"):
        values["stop"] = list(sampling.stop)
    if index and "seed" in values:
        # Texts of one call differ.
        values["seed"] = (values["seed"] + index) & _MAX_SEED
    inputs, payloads = _prompt_tensors(model, prompt)
    for role, tensor in generation.inputs.items():
        value = _value_of(role, values, sampling, generation)
        if value is not None:
            values.pop(role, None)
            count = len(value) if tensor.takes_many else 1
            inputs.append(HeadInput(tensor.name, tensor.datatype, [*tensor.shape[:-1], count]))
            payloads.append(_raw(role, value, tensor))
    head = request_head.build(model.name, model.version, inputs, ()).head
    parameters: dict[str, Parameter] = {}
    for role, name in generation.parameters.items():
        if role in values:
            value = values[role]
            parameters[name] = orjson.dumps(value).decode() if isinstance(value, list) else value
    request = ClientRequest(0, head, payloads, text_digest=model.digest)
    request.parameters = parameters or None
    request.accepts_many = generation.decoupled
    return request


def _prompt_tensors(model: TextModel, prompt: Prompt) -> tuple[list[HeadInput], list[Payload]]:
    if prompt.ids is None:
        return model.tensors(1), model.text_row(prompt.text).payloads
    size = model.mapping.fixed_tokens or len(prompt.ids)
    return model.tensors(size), list(model.token_row(Tokens(prompt.ids)).payloads)


def _value_of(role: str, values: dict[str, Any], sampling: Sampling, generation: Generation) -> Any:
    match role:
        case "stream":
            return generation.decoupled
        case "exclude_prompt" | "with_finish_reason":
            return True
        case "with_prompt_tokens" | "with_completion_tokens":
            return True
        case "with_logprobs":
            return True if sampling.logprobs is not None else None
        case "stop":
            stop = values.get("stop")
            # The gateway looks for those for which the input has no place.
            return stop if stop is None or generation.inputs[role].takes_many else stop[0]
        case "schema":
            return _schema(sampling, generation)
        case "schema_kind":
            kind = "json_schema" if sampling.schema else "json"
            return None if sampling.schema is None else kind
        case _ if role == SAMPLING_PARAMETERS:
            return orjson.dumps(_packed(values, sampling, generation)).decode() or None
    return values.get(role)


def _schema(sampling: Sampling, generation: Generation) -> str | None:
    if sampling.schema is None:
        return None
    if not sampling.schema and "schema_kind" in generation.inputs:
        # The kind alone asks for any object.
        return None
    return orjson.dumps(sampling.schema or {"type": "object"}).decode()


def _packed(values: dict[str, Any], sampling: Sampling, generation: Generation) -> dict[str, Any]:
    """Return what vLLM's backend takes as a JSON object."""
    packed = {
        name: value
        for name, value in values.items()
        if name not in generation.inputs and name not in generation.parameters
    }
    if sampling.logprobs is not None:
        packed["logprobs"] = sampling.logprobs
    if sampling.schema is not None and "schema" not in generation.inputs:
        # The backend reads the JSON text within the object.
        rule = {"json": sampling.schema} if sampling.schema else {"json_object": True}
        packed["structured_outputs"] = orjson.dumps(rule).decode()
    if sampling.bias:
        packed["logit_bias"] = {str(token): bias for token, bias in sampling.bias.items()}
    return packed


def _raw(role: str, value: Any, tensor: GenerationInput) -> bytes:
    elements = value if isinstance(value, list) else [value]
    if tensor.datatype == BYTES:
        return join_bytes([text.encode() for text in elements])
    dtype = NUMPY_TYPE[tensor.datatype]
    try:
        array = np.array(elements, dtype)
    except (OverflowError, ValueError) as error:
        raise InvalidParameter(
            role,
            f"Invalid value for '{role}': {value} does not fit the model's input of type"
            f" {tensor.datatype}.",
            "invalid_value",
        ) from error
    return array.tobytes()
