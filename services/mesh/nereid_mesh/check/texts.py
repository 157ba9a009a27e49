"""Findings about text models: their mapping, and what keeps texts from being served well."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.facts.findings import Finding, Severity
from nereid.text import read_mapping
from nereid.text.decision_reading import MANIFESTS
from nereid.text.decisions import MarkerRows
from nereid.text.export_batching import padding_of
from nereid.text.files import LARGE, TOKENIZER
from nereid.text.generation import SAMPLING
from nereid.text.tensors import IDS, USUAL_INPUTS
from nereid_gateway.extras.openai.texts.vector_layers import VectorLayers
from nereid_mesh.check.packages import package_findings
from nereid_scheduler.control.repository.model_folder import LocalFolder
from nereid_scheduler.core.models.text_files import find_text_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid.text import TextMapping
    from nereid.text.generation import Generation

_SAVE_TOKENIZER: Final = (
    "write it: transformers.AutoTokenizer.from_pretrained(NAME, use_fast=True)"
    ".save_pretrained(FOLDER)"
)
_CONFIG: Final = "config.json"


def text_findings(path: Path, place: str, config: ModelConfig) -> Iterator[Finding]:
    """Yield findings about a version's texts.

    config: completed. place: folder of the version, below the model's folder at `path`.
    """
    folder = LocalFolder(path)
    found = find_text_files(place, folder.has_file)
    for name in MANIFESTS:
        if name in found:
            yield from package_findings(path / found[name])
    try:
        files = {name: b"" if name in LARGE else folder.read(file) for name, file in found.items()}
        mapping = read_mapping(config, files)
        layers = () if mapping is None else mapping.layers
        weights = {
            each.weights: folder.read(found[each.weights]) for each in layers if each.weights
        }
        VectorLayers(layers, weights)
    except OSError as error:
        message = f"it takes no texts: {error.filename}: {error.strerror}"
        yield Finding(Severity.WARNING, "text-mapping", message)
        return
    except InvalidArgument as error:
        hint = _SAVE_TOKENIZER if "tokenizer: the model's directory" in error.message else ""
        message = f"it takes no texts: {error.message}"
        yield Finding(Severity.WARNING, "text-mapping", message, hint)
        return
    if mapping is not None:
        yield Finding(Severity.NOTE, "text-model", _summary(mapping))
        yield from _lengths(config, mapping)
        yield from _template(mapping)
    elif _lacks_tokenizer(config, files):
        message = f"it takes no texts: there is no {TOKENIZER} beside {_CONFIG}"
        yield Finding(Severity.NOTE, "no-tokenizer", message, _SAVE_TOKENIZER)


def _lacks_tokenizer(config: ModelConfig, files: Mapping[str, bytes]) -> bool:
    if _CONFIG not in files or TOKENIZER in files:
        return False
    return any(
        tensor.name == USUAL_INPUTS["ids"] and NAME_OF_CONFIG_NUMBER.get(tensor.data_type) in IDS
        for tensor in config.input
    )


def _summary(mapping: TextMapping) -> str:
    tensors = (mapping.ids, mapping.mask, mapping.types, mapping.positions, mapping.text)
    inputs = ", ".join(tensor.name for tensor in tensors if tensor is not None)
    parts = [f"{inputs} -> {mapping.output}"]
    if mapping.pooling:
        parts.append(f"pooling {mapping.pooling}")
    parts += [layer.kind for layer in mapping.layers]
    if mapping.normalizes:
        parts.append("normalized")
    if mapping.decisions is not None:
        per = "question" if isinstance(mapping.decisions.rows, MarkerRows) else "option"
        parts.append(f"a row for each {per}")
    if mapping.labels:
        names = ", ".join(mapping.labels[:4]) + (", ..." if len(mapping.labels) > 4 else "")
        parts.append(f"{len(mapping.labels)} labels by {mapping.activation} ({names})")
    if mapping.generation is not None:
        parts += _abilities(mapping, mapping.generation)
    if mapping.keeps_tokens:
        parts.append("a sequence for each text, with state")
    if mapping.max_tokens:
        parts.append(f"up to {mapping.max_tokens} tokens")
    return f"it takes texts ({', '.join(sorted(mapping.tasks))}): {'; '.join(parts)}"


def _abilities(mapping: TextMapping, generation: Generation) -> Iterator[str]:
    taken = [name for name in SAMPLING if generation.takes(name)]
    if taken:
        yield f"takes {', '.join(taken)}"
    yield "chat template" if mapping.chat_template else "no chat template"
    if generation.tool_parser:
        yield f"tools as {generation.tool_parser}"


def _template(mapping: TextMapping) -> Iterator[Finding]:
    """Yield a finding if the chat template has an error, and the packages of gateways are here."""
    if not mapping.chat_template or find_spec("jinja2") is None:
        return
    # Few models have one.
    from nereid_gateway.extras.openai.texts.chat_templates import (  # noqa: PLC0415
        check_template,
    )

    try:
        check_template(mapping.chat_template)
    except InvalidArgument as error:
        yield Finding(Severity.WARNING, "text-mapping", error.message)


def _lengths(config: ModelConfig, mapping: TextMapping) -> Iterator[Finding]:
    """Yield a finding if texts of different lengths do not share batches."""
    if mapping.ids is None or mapping.batches_lengths or mapping.fixed_tokens:
        return
    if mapping.keeps_tokens or mapping.generation is not None:
        # Texts are sequences of their own, or their logits too large for padding.
        return
    if config.max_batch_size > 1 and mapping.mask is not None:
        value = padding_of(config, mapping)
        yield Finding(
            Severity.WARNING,
            "text-lengths",
            "texts share a batch only if they have equal numbers of tokens",
            f'write in config.pbtxt: parameters {{ key: "padding" value {{ string_value: "{value}"'
            " } }",
        )
