"""Tensors of a configuration that take texts, and those that give vectors or texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
    from nereid.text.documents import Document

USUAL_INPUTS: Final = {
    "ids": "input_ids",
    "mask": "attention_mask",
    "types": "token_type_ids",
    "positions": "position_ids",
}
# The number of logits that a decoder gives, counted from the last token.
LOGITS_TO_KEEP: Final = "num_logits_to_keep"
IDS: Final = frozenset({"INT32", "INT64"})
# Tensors of Triton's backends for vLLM and TensorRT-LLM.
TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"
_GENERATOR_MARKS: Final = frozenset(
    {"sampling_parameters", "stream", "max_tokens", "sampling_param_max_tokens"}
)
_ROLES: Final = (*USUAL_INPUTS, "text")
_DATATYPES: Final = {"text": frozenset({BYTES}), "ids": IDS, "positions": IDS, "type": IDS}
_MASKS: Final = IDS | {"BOOL", "FP16", "FP32", "INT8", "UINT8"}


@dataclass(frozen=True, slots=True)
class TextInput:
    """An input of the model: its name, and its KServe datatype, such as INT64 or BYTES."""

    name: str
    datatype: str
    # Dimensions of a tensor with one row, that of the batch included. All are 1 but the last, which
    # is the number of tokens, or 1 for text.
    rank: int = 2


class Tensors:
    """Tensors of a configuration by name."""

    def __init__(self, config: ModelConfig) -> None:
        self.batches = config.max_batch_size > 0
        self.inputs = {tensor.name: tensor for tensor in config.input}
        self.outputs = {tensor.name: tensor for tensor in config.output}

    def are_of_generator(self) -> bool:
        """Return whether the names are those of Triton's backends that generate texts."""
        text, output = self.inputs.get(TEXT_INPUT), self.outputs.get(TEXT_OUTPUT)
        if text is None or output is None or {datatype(text), datatype(output)} != {BYTES}:
            return False
        return not _GENERATOR_MARKS.isdisjoint(self.inputs)


def datatype(tensor: ModelInput | ModelOutput) -> str:
    """Return a tensor's KServe datatype; empty if the configuration has none."""
    return NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")


def read_inputs(section: Document, tensors: Tensors) -> dict[str, TextInput]:
    """Return the inputs by role: ids, mask, types, positions or text. May raise InvalidArgument."""
    section.refuse_unknown(_ROLES)
    names = {role: section.string(role) for role in _ROLES if section.has(role)}
    if "text" not in names:
        names = _usual_names(names, tensors)
    if not names.keys() & {"ids", "text"}:
        raise section.refuse("ids", "say which input takes token ids, or 'text' for text")
    if "text" in names and len(names) > 1:
        raise section.refuse("text", "a model takes either text, or token ids with their mask")
    if len({*names.values()}) < len(names):
        raise InvalidArgument(f"{section.source}: an input is named twice")
    inputs = {role: read_input(section, role, name, tensors) for role, name in names.items()}
    if len({tensors.inputs[name].dims[-1] for name in names.values()}) > 1:
        raise InvalidArgument(f"{section.source}: the inputs have different numbers of tokens")
    return inputs


def _usual_names(names: Mapping[str, str], tensors: Tensors) -> dict[str, str]:
    usual = {role: name for role, name in USUAL_INPUTS.items() if name in tensors.inputs}
    if "ids" in names or "ids" in usual:
        return {**usual, **names}
    texts = [name for name, tensor in tensors.inputs.items() if datatype(tensor) == BYTES]
    if tensors.are_of_generator():
        texts = [TEXT_INPUT]
    elif len(texts) > 1:
        # Generators may have optional inputs of text besides the prompt.
        texts = [name for name in texts if not tensors.inputs[name].optional]
    return {**names, "text": texts[0]} if len(texts) == 1 else dict(names)


def read_input(section: Document, role: str, name: str, tensors: Tensors) -> TextInput:
    """Return an input by its name. May raise InvalidArgument."""
    tensor = tensors.inputs.get(name)
    if tensor is None:
        raise section.refuse(role, f"the model has no input '{name}'")
    kind = datatype(tensor)
    allowed = _DATATYPES.get(role, _MASKS)
    if kind not in allowed:
        expected = ", ".join(sorted(allowed))
        raise section.refuse(role, f"input '{name}' is of type {kind}, expected {expected}")
    dims = tensor.dims
    leading = 0 if tensors.batches else 1
    if not 1 <= len(dims) <= 1 + leading or any(dim > 1 for dim in dims[:-1]):
        raise section.refuse(role, f"the dims of input '{name}' are not those of one text")
    if role == "text" and dims[-1] > 1:
        raise section.refuse(role, f"input '{name}' takes {dims[-1]} texts in each row")
    return TextInput(name, kind, len(dims) + tensors.batches)
