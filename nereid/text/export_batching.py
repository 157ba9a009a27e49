"""Completes the configuration of exported encoders, so that texts of different lengths batch.

Exports have no configuration of their own. Without padding only texts of equal length would run in
one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.shapes import VARIABLE
from nereid.model_config.batching_fields import MAX_BATCH_TOKENS
from nereid.model_config.padding import PADDING
from nereid.text.decisions import MarkerRows
from nereid.text.files import TOKENIZERS
from nereid.text.mapping import SPLADE
from nereid.text.reading import read_mapping
from nereid.text.tensors import USUAL_INPUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.backends.description import ModelDescription
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
# Enough for a whole batch of the usual longest texts; Text Embeddings Inference has as many.
_MAX_BATCH_TOKENS: Final = 16_384
# Each token's logits of a vocabulary have 120 KB or more.
_MAX_BATCH_LOGITS: Final = 1024


def takes_lone_rows(description: ModelDescription, files: Mapping[str, bytes]) -> bool:
    """Return whether the variable dimension of an export's inputs is tokens, and not a batch."""
    if files.keys().isdisjoint(TOKENIZERS):
        return False
    return any(
        tensor.name == USUAL_INPUTS["ids"] and tensor.dims is not None and len(tensor.dims) == 1
        for tensor in description.inputs
    )


def complete_export(config: ModelConfig, files: Mapping[str, bytes], written: ModelConfig) -> None:
    """Add padding, a larger batch and a budget of tokens to the configuration of an export.

    written: what an overlay says, which is kept. Contents of large files may be left out of
    `files`. Other models than encoders stay as they are.
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
    if mapping.generation is not None or mapping.keeps_tokens:
        # Logits of a whole batch of padded texts would take gigabytes.
        return
    if not written.max_batch_size:
        config.max_batch_size = max(config.max_batch_size, _MAX_BATCH_SIZE)
    if not written.dynamic_batching.preferred_batch_size:
        # The default, which was completed for the former size.
        config.dynamic_batching.preferred_batch_size[:] = [config.max_batch_size]
    padding = config.parameters[PADDING].string_value = padding_of(config, mapping)
    # A budget of tokens is for rows with one length.
    if ";" not in padding and MAX_BATCH_TOKENS not in config.parameters:
        most = _MAX_BATCH_LOGITS if mapping.pooling == SPLADE else _MAX_BATCH_TOKENS
        config.parameters[MAX_BATCH_TOKENS].string_value = str(most)


def padding_of(config: ModelConfig, mapping: TextMapping) -> str:
    """Return the parameter with which an encoder's texts of different lengths batch."""
    assert mapping.ids is not None, "only models that take token ids are padded"
    others = [tensor.name for tensor in (mapping.mask, mapping.types) if tensor is not None]
    inputs = [f"{mapping.ids.name}[0]={mapping.pad_id}", *(f"{name}[0]" for name in others)]
    if mapping.positions is not None:
        inputs.append(f"{mapping.positions.name}[0]={mapping.padded_position}")
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
