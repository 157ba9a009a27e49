"""Layers behind the pooling, by which sentence-transformers changes a text's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.text.documents import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping

DENSE: Final = "Dense"
LAYER_NORM: Final = "LayerNorm"
NORMALIZE: Final = "Normalize"
WITH_WEIGHTS: Final = (DENSE, LAYER_NORM)
ACTIVATIONS: Final = ("Identity", "Tanh", "ReLU", "Sigmoid")
WEIGHTS: Final = "model.safetensors"
# The one that a Dense layer has if its files say nothing.
_DEFAULT_ACTIVATION: Final = "Tanh"


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the kinds above, of which all but NORMALIZE have weights."""

    kind: str
    # Path of the weights below the model's directory.
    weights: str = ""
    # Numbers of values of the vector before and behind the layer.
    inputs: int = 0
    outputs: int = 0
    bias: bool = False
    # One of ACTIVATIONS.
    activation: str = ACTIVATIONS[0]


def read_layer(kind: str, folder: str, files: Mapping[str, bytes]) -> Layer:
    """Return a layer of a module's folder. Raises InvalidArgument with the file that is wrong."""
    if kind not in WITH_WEIGHTS:
        return Layer(kind)
    name, weights = f"{folder}/config.json", f"{folder}/{WEIGHTS}"
    if name not in files:
        raise InvalidArgument(f"modules.json: no file '{name[:200]}'")
    config = parse_document(name, files[name])
    if weights not in files:
        raise InvalidArgument(
            f"modules.json: no file '{weights}'; pytorch_model.bin is not read, so write it:"
            " SentenceTransformer(NAME).save_pretrained(FOLDER)"
        )
    if kind == LAYER_NORM:
        size = config.count("dimension")
        layer = Layer(kind, weights, size, size, bias=True)
    else:
        for key in ("module_input_name", "module_output_name"):
            if config.string(key, "sentence_embedding") not in {"", "sentence_embedding"}:
                raise config.refuse(key, "only vectors of texts can be changed")
        written = config.string("activation_function", _DEFAULT_ACTIVATION)
        activation = written.rpartition(".")[2]
        if activation not in ACTIVATIONS:
            raise config.refuse("activation_function", f"expected one of {', '.join(ACTIVATIONS)}")
        layer = Layer(
            kind,
            weights,
            config.count("in_features"),
            config.count("out_features"),
            config.boolean("bias", default=True),
            activation,
        )
    if not (layer.inputs and layer.outputs):
        key = "dimension" if kind == LAYER_NORM else "in_features"
        raise config.refuse(key, "expected the sizes of vectors")
    return layer
