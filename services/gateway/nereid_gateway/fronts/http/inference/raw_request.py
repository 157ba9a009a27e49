"""Raw requests, whose body is only the data of the model's single input."""

# layout: not compiled, off the hot path

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER, SIZE_BYTES
from nereid.core.tensors.shapes import VARIABLE
from nereid_gateway.core.request_head import HeadInput
from nereid_gateway.core.tensors.string_elements import prefix

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


def deduce_input(config: model_config_pb2.ModelConfig, body: bytes) -> tuple[HeadInput, bytes]:
    """Return the input and its raw data. Name, datatype and shape follow from the configuration.

    Raises InvalidArgument if the model has several inputs or the shape is ambiguous.
    """
    if len(config.input) != 1:
        raise InvalidArgument(
            f"{prefix('')}Raw request must only have 1 input (found 1) to be deduced but got"
            f" {len(config.input)} inputs in '{config.name}' model configuration"
        )
    tensor = config.input[0]
    datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
    shape = [1] if config.max_batch_size else []
    first = len(shape)
    shape += tensor.dims
    variable = [axis for axis in range(first, len(shape)) if shape[axis] == VARIABLE]
    if len(variable) > 1:
        raise InvalidArgument(
            f"{prefix('')}The shape of the raw input '{tensor.name}' can not be deduced because"
            " there are more than one variable-sized dimension"
        )
    elements = 1
    for size in shape[first:]:
        elements *= 1 if size == VARIABLE else size
    if datatype == BYTES:
        if variable or elements != 1:
            raise InvalidArgument(
                f"{prefix('')}For BYTE datatype raw input '{tensor.name}', the model must have"
                " input shape [1]"
            )
        body = pack("<I", len(body)) + body
    elif variable:
        element_bytes = elements * SIZE_BYTES.get(datatype, 1)
        shape[variable[0]] = len(body) // element_bytes if element_bytes else 0
    return HeadInput(tensor.name, datatype, shape), body
