"""The GPT graph against its NumPy reference: with its cache it says what that says without one."""

from typing import Any

import numpy as np
import onnxruntime
import pytest

from examples.zoo import gpt, gpt_graph, textgen

SHAPE = gpt.GptShape(layers=2, heads=3, hidden=24, context=40, vocabulary=17)
SIZE = SHAPE.hidden // SHAPE.heads


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return gpt.random_weights(SHAPE, 3)


@pytest.fixture(scope="module")
def session(weights: dict[str, Any]) -> onnxruntime.InferenceSession:
    model = gpt_graph.build(SHAPE, weights).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def past(batch: int = 1) -> Any:
    return np.zeros((SHAPE.layers, 2, batch, SHAPE.heads, 0, SIZE), np.float32)


@pytest.mark.parametrize("parts", [(9,), (4, 5), (1,) * 9, (8, 1)])
def test_the_cache_changes_nothing(
    session: onnxruntime.InferenceSession, weights: dict[str, Any], parts: tuple[int, ...]
) -> None:
    tokens = np.random.default_rng(1).integers(0, SHAPE.vocabulary, sum(parts))
    kept, end = past(), 0
    for part in parts:
        inputs = {"input_ids": tokens[None, end : end + part].astype(np.int64), "past": kept}
        logits, kept = session.run(["logits", "present"], inputs)
        end += part
        expected = gpt.logits(SHAPE, weights, tokens[:end].tolist())
        np.testing.assert_allclose(logits[0], expected, atol=1e-4)
    assert kept.shape == (SHAPE.layers, 2, 1, SHAPE.heads, sum(parts), SIZE)


def test_texts_of_a_batch_do_not_see_each_other(
    session: onnxruntime.InferenceSession, weights: dict[str, Any]
) -> None:
    tokens = np.random.default_rng(2).integers(0, SHAPE.vocabulary, (3, 6))
    (logits,) = session.run(["logits"], {"input_ids": tokens.astype(np.int64), "past": past(3)})
    for row, generated in zip(tokens, logits, strict=True):
        np.testing.assert_allclose(generated, gpt.logits(SHAPE, weights, row.tolist()), atol=1e-4)


def test_every_character_of_a_prompt_is_a_token() -> None:
    assert len(set(textgen.CHARACTERS)) == len(textgen.CHARACTERS) == textgen.SHAPE.vocabulary
    longest = max(map(len, textgen.PROMPTS)) + textgen.LENGTH
    assert longest < textgen.SHAPE.context
    assert set("".join(textgen.PROMPTS)) <= set(textgen.CHARACTERS)
