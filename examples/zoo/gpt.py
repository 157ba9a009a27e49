"""A GPT-2 decoder's forward pass in NumPy: the reference that the ONNX graph is checked against.

Written for clarity and in double precision, straight from the architecture's definition; it keeps
nothing from one token to the next, so that it shares no mistake with `gpt_graph`'s cache.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = Mapping[str, NDArray[Any]]
Array = NDArray[Any]


@dataclass(frozen=True)
class GptShape:
    """Hyperparameters, which the weights do not contain."""

    layers: int
    heads: int
    hidden: int
    # How many tokens it can look back on, and how many there are.
    context: int
    vocabulary: int
    epsilon: float = 1e-5


def random_weights(shape: GptShape, seed: int) -> dict[str, Array]:
    """Weights that were never trained, by the names Hugging Face gives GPT-2's."""
    random = np.random.default_rng(seed)
    hidden = shape.hidden
    weights: dict[str, Array] = {}

    def normal(name: str, *dims: int, scale: float) -> None:
        weights[name] = random.normal(0, scale, dims).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = np.ones(hidden, np.float32)
        weights[f"{name}.bias"] = np.zeros(hidden, np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        normal(f"{name}.weight", inputs, outputs, scale=2 / math.sqrt(inputs))
        normal(f"{name}.bias", outputs, scale=0.1)

    normal("wte.weight", shape.vocabulary, hidden, scale=0.3)
    normal("wpe.weight", shape.context, hidden, scale=0.3)
    for layer in range(shape.layers):
        norm(f"h.{layer}.ln_1")
        linear(f"h.{layer}.attn.c_attn", hidden, 3 * hidden)
        linear(f"h.{layer}.attn.c_proj", hidden, hidden)
        norm(f"h.{layer}.ln_2")
        linear(f"h.{layer}.mlp.c_fc", hidden, 4 * hidden)
        linear(f"h.{layer}.mlp.c_proj", 4 * hidden, hidden)
    norm("ln_f")
    return weights


def greedy(shape: GptShape, weights: Weights, prompt: Sequence[int], count: int) -> list[int]:
    """Return the tokens that follow a prompt, each the likeliest."""
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(shape, weights, tokens).argmax()))
    return tokens[len(prompt) :]


def logits(shape: GptShape, weights: Weights, tokens: Sequence[int]) -> Array:
    """How likely each token is to be the next."""
    embeddings = weights["wte.weight"]
    hidden = embeddings[list(tokens)] + weights["wpe.weight"][: len(tokens)]
    for layer in range(shape.layers):
        name = f"h.{layer}"
        hidden = hidden + _attention(shape, weights, name, hidden)
        wide = _linear(weights, f"{name}.mlp.c_fc", _norm(shape, weights, f"{name}.ln_2", hidden))
        hidden = hidden + _linear(weights, f"{name}.mlp.c_proj", _gelu(wide))
    last: Array = _norm(shape, weights, "ln_f", hidden)[-1]
    return last @ embeddings.T


def _attention(shape: GptShape, weights: Weights, name: str, hidden: Array) -> Array:
    length, size = len(hidden), shape.hidden // shape.heads
    joined = _linear(weights, f"{name}.attn.c_attn", _norm(shape, weights, f"{name}.ln_1", hidden))
    query, key, value = (
        each.reshape(length, shape.heads, size).transpose(1, 0, 2)
        for each in np.split(joined, 3, axis=-1)
    )
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(size)
    # Nobody looks ahead.
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = (shares @ value).transpose(1, 0, 2).reshape(length, shape.hidden)
    return _linear(weights, f"{name}.attn.c_proj", mixed)


def _linear(weights: Weights, name: str, values: Array) -> Array:
    result: Array = values @ weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def _norm(shape: GptShape, weights: Weights, name: str, values: Array) -> Array:
    centred = values - values.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + shape.epsilon)
    result: Array = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def _gelu(values: Array) -> Array:
    """GPT-2's, by the hyperbolic tangent."""
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
    result: Array = 0.5 * values * (1 + np.tanh(inner))
    return result
