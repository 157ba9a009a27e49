"""A BERT encoder's forward pass in NumPy: the reference that the ONNX graph is checked against.

Written for clarity and in double precision, straight from the architecture's definition, so that it
shares no code (and no mistake) with `bert_graph`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = Mapping[str, NDArray[Any]]
Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class BertShape:
    """Hyperparameters, which the weights do not contain."""

    layers: int
    heads: int
    hidden: int
    epsilon: float

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "BertShape":
        """From the `config.json` that lies beside the weights."""
        if config["hidden_act"] != "gelu" or config["position_embedding_type"] != "absolute":
            raise ValueError("only BERT with gelu and absolute positions is supported")
        return BertShape(
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            hidden=config["hidden_size"],
            epsilon=config["layer_norm_eps"],
        )


@dataclass(frozen=True)
class Tokens:
    """A batch of sentences: three INT64 arrays [batch, sequence]; the mask is 0 where padded."""

    input_ids: Array
    attention_mask: Array
    token_type_ids: Array

    def by_name(self) -> dict[str, Array]:
        return dict(vars(self))


def forward(shape: BertShape, weights: Weights, tokens: Tokens) -> Array:
    """Return the last hidden state, [batch, sequence, hidden]."""
    length = tokens.input_ids.shape[1]
    hidden = (
        weights["embeddings.word_embeddings.weight"].astype(np.float64)[tokens.input_ids]
        + weights["embeddings.position_embeddings.weight"][:length]
        + weights["embeddings.token_type_embeddings.weight"][tokens.token_type_ids]
    )
    hidden = _layer_norm(shape, weights, "embeddings.LayerNorm", hidden)
    for layer in range(shape.layers):
        prefix = f"encoder.layer.{layer}"
        attended = _attention(shape, weights, prefix, (hidden, tokens.attention_mask))
        hidden = _layer_norm(
            shape, weights, f"{prefix}.attention.output.LayerNorm", hidden + attended
        )
        wide = _linear(weights, f"{prefix}.intermediate.dense", hidden)
        wide = wide * 0.5 * (1 + _erf(wide / math.sqrt(2)))
        narrow = _linear(weights, f"{prefix}.output.dense", wide)
        hidden = _layer_norm(shape, weights, f"{prefix}.output.LayerNorm", hidden + narrow)
    return hidden


def embed(hidden: Array, attention_mask: Array) -> Array:
    """Sentence embeddings, [batch, hidden]: the mean over the real tokens, at unit length."""
    mask = attention_mask[:, :, None]
    mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True))


def _linear(weights: Weights, name: str, values: Array) -> Array:
    return np.asarray(values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])


def _layer_norm(shape: BertShape, weights: Weights, name: str, values: Array) -> Array:
    centred = values - values.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + shape.epsilon)
    return np.asarray(centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"])


def _attention(
    shape: BertShape, weights: Weights, prefix: str, hidden_and_mask: tuple[Array, Array]
) -> Array:
    hidden, mask = hidden_and_mask
    batch, length, _ = hidden.shape

    def heads(role: str) -> Array:
        values = _linear(weights, f"{prefix}.attention.self.{role}", hidden)
        return values.reshape(batch, length, shape.heads, -1).transpose(0, 2, 1, 3)

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(shape.hidden / shape.heads)
    scores = np.where(mask[:, None, None, :] == 1, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores = scores / scores.sum(axis=-1, keepdims=True)
    mixed = (scores @ value).transpose(0, 2, 1, 3).reshape(batch, length, shape.hidden)
    return _linear(weights, f"{prefix}.attention.output.dense", mixed)
