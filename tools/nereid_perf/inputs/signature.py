"""The signature of a model, made from the server's metadata and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nereid.core.tensors.datatypes import NAMES
from nereid.core.tensors.shapes import VARIABLE
from nereid_perf.inputs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CORRELATION_ID: Final = "CONTROL_SEQUENCE_CORRID"
_TEXT: Final = "TYPE_STRING"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output; `dims` lacks the batch dimension, and -1 is a variable dimension.

    is_shape: the values are dimensions, so they cannot be made up.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False
    is_shape: bool = False


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The inputs and outputs of a model, and the kind of its requests.

    max_batch_size: `None` means no batch dimension, 0 any size. has_text_ids: sequence ids are
    texts.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int | None = None
    is_sequence: bool = False
    has_text_ids: bool = False
    is_decoupled: bool = False


def signature_of(metadata: Mapping[str, Any], config: Mapping[str, Any] | None) -> ModelSignature:
    """Return the signature for metadata and configuration, both as Triton's JSON.

    Without a configuration, a variable first dimension of all inputs is the batch dimension. Raises
    InputError if a datatype or a shape breaks the protocol.
    """
    name = str(metadata.get("name", ""))
    inputs = [_spec(name, tensor) for tensor in metadata.get("inputs") or ()]
    outputs = [_spec(name, tensor) for tensor in metadata.get("outputs") or ()]
    if config is None:
        if not inputs or any(not spec.dims or spec.dims[0] != VARIABLE for spec in inputs):
            return ModelSignature(tuple(inputs), tuple(outputs))
        return ModelSignature(_without_batch(inputs), _without_batch(outputs), 0)
    max_batch_size = int(config.get("max_batch_size") or 0) or None
    if max_batch_size:
        inputs, outputs = [*_without_batch(inputs)], [*_without_batch(outputs)]
    batching = config.get("sequence_batching")
    controls = (batching or {}).get("control_input") or ()
    added_by_server = {control.get("name") for control in controls}
    configured = {tensor.get("name"): tensor for tensor in config.get("input") or ()}
    return ModelSignature(
        tuple(
            TensorSpec(
                spec.name,
                spec.datatype,
                spec.dims,
                bool(configured.get(spec.name, {}).get("optional")),
                bool(configured.get(spec.name, {}).get("is_shape_tensor")),
            )
            for spec in inputs
            if spec.name not in added_by_server
        ),
        tuple(outputs),
        max_batch_size,
        batching is not None,
        any(
            control.get("kind") == _CORRELATION_ID and control.get("data_type") == _TEXT
            for controlled in controls
            for control in controlled.get("control") or ()
        ),
        bool((config.get("model_transaction_policy") or {}).get("decoupled")),
    )


def _spec(model: str, tensor: Mapping[str, Any]) -> TensorSpec:
    name, datatype = str(tensor.get("name", "")), str(tensor.get("datatype", ""))
    if datatype not in NAMES:
        raise InputError(
            f"the server's metadata of model '{model}' gives tensor '{name}' the datatype "
            f"'{datatype}', which KServe v2 does not have"
        )
    # protobuf's JSON has 64-bit numbers as texts.
    return TensorSpec(name, datatype, tuple(int(size) for size in tensor.get("shape") or ()))


def _without_batch(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tensor.name, tensor.datatype, tensor.dims[1:]) for tensor in tensors)
