"""Completes the configuration of exported encoders, so that texts of different lengths batch.

Exports have no configuration of their own. Without padding only texts of equal length would run in
one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.shapes import VARIABLE
from nereid.model_config.padding import PADDING
from nereid.text.decisions import MarkerRows
from nereid.text.reading import read_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid.text.decisions import DecisionMapping
    from nereid.text.mapping import TextMapping

# Rows of encoders are small; sentence-transformers takes as many.
_MAX_BATCH_SIZE: Final = 32
_SHORTEST: Final = 16
# Longest padded length of a model whose limit is unknown. Longer texts batch if they are equal.
_LONGEST: Final = 512
# Padded numbers of options of a question. More of them cost little, but fuller batches gain much.
_OPTIONS: Final = (4, 16, 64)
_MOST_OPTIONS: Final = 255


def complete_export(config: ModelConfig, files: Mapping[str, bytes]) -> None:
    """Add padding and a larger batch to the completed configuration of an export.

    Contents of tokenizers may be left out of `files`. Other models than encoders stay as they are.
    """
    if config.max_batch_size < 1 or PADDING in config.parameters:
        return
    try:
        mapping = read_mapping(config, files)
    except InvalidArgument:
        # Requests with tensors do not need the mapping; those with texts report the error.
        return
    if mapping is None or mapping.ids is None or mapping.mask is None or mapping.fixed_tokens:
        return
    config.max_batch_size = max(config.max_batch_size, _MAX_BATCH_SIZE)
    config.dynamic_batching.SetInParent()
    config.parameters[PADDING].string_value = padding_of(config, mapping)


def padding_of(config: ModelConfig, mapping: TextMapping) -> str:
    """Return the parameter with which an encoder's texts of different lengths batch."""
    assert mapping.ids is not None, "only models that take token ids are padded"
    others = [tensor.name for tensor in (mapping.mask, mapping.types) if tensor is not None]
    inputs = [f"{mapping.ids.name}[0]={mapping.pad_id}", *(f"{name}[0]" for name in others)]
    # The first dim of vectors for each token is the number of tokens.
    outputs = [
        f"{output.name}[0]"
        for output in config.output
        if len(output.dims) > 1 and output.dims[0] == VARIABLE
    ]
    arrow = ["->", *outputs] if outputs else []
    sizes = map(str, bucket_sizes(mapping.max_tokens or _LONGEST))
    padding = f"{' '.join([*inputs, *arrow])}: {' '.join(sizes)}"
    if mapping.decisions is not None and isinstance(mapping.decisions.rows, MarkerRows):
        padding += _options_padding(config, mapping, mapping.decisions)
    return padding


def _options_padding(config: ModelConfig, mapping: TextMapping, decisions: DecisionMapping) -> str:
    rows = decisions.rows
    assert isinstance(rows, MarkerRows), "pairs have one option in each row"
    dims = {tensor.name: list(tensor.dims) for tensor in config.input}
    dims |= {tensor.name: list(tensor.dims) for tensor in config.output}
    names = [rows.positions.name, rows.mask.name, mapping.output]
    if any(dims[name] != [VARIABLE] for name in names):
        return ""
    positions, mask, output = (f"{name}[0]" for name in names)
    most = decisions.limits.options or _MOST_OPTIONS
    sizes = [*(size for size in _OPTIONS if size < most), most]
    return f"; {positions} {mask} -> {output}: {' '.join(map(str, sizes))}"


def bucket_sizes(longest: int) -> list[int]:
    """Return padded lengths, two for each doubling: at most a third of a padded row is padding."""
    sizes = []
    size = _SHORTEST
    while size < longest:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [*(size for size in sizes if size < longest), longest]
