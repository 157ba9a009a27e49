"""Published tests, examples and descriptions of Text Embeddings Inference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.e2e.texts.published.text_site import LABELS, TEXT, Site, encode

pytestmark = pytest.mark.slow


def test_teis_vectors(site: Site) -> None:
    bare = site.bare("cut")
    expected = bare.vector(TEXT)[:8] / np.linalg.norm(bare.vector(TEXT)[:8])
    single = site.post("/embed", {"model": "cut", "inputs": TEXT, "dimensions": 8})
    batch = site.post("/embed", {"model": "cut", "inputs": [TEXT] * 3, "dimensions": 8})
    assert np.allclose(single, [expected], atol=1e-5)
    assert np.allclose(batch, [expected] * 3, atol=1e-5)
    texts = ["the cat", "rain"]
    vectors = site.post("/embed", {"model": "plain", "inputs": texts})
    assert np.allclose(vectors, [site.bare("plain").vector(text) for text in texts], atol=1e-5)
    for text, side in (("cat " * 80 + "rain " * 80, "Left"), ("rain " * 80, "right")):
        asked = {"model": "plain", "inputs": text, "truncate": True, "truncation_direction": side}
        expected = site.bare("plain").vector("rain " * 62)
        assert np.allclose(site.post("/embed", asked), [expected], atol=1e-5)


def test_teis_sparse_vectors(site: Site) -> None:
    texts = [TEXT, "rain"]
    body = site.post("/embed_sparse", {"inputs": texts})
    for text, pairs in zip(texts, body, strict=True):
        logits = site.bare("sparse").output(text)
        weights = np.log1p(np.maximum(logits, 0)).max(axis=0)
        assert [each["index"] for each in pairs] == np.nonzero(weights)[0].tolist()
        values = [each["value"] for each in pairs]
        assert np.allclose(values, weights[weights > 0], atol=1e-5)
    assert site.post("/embed_sparse", {"inputs": TEXT}) == [body[0]]
    ids = {"model": "sparse", "inputs": encode(TEXT)}
    assert site.post("/embed_sparse", ids) == [body[0]]
    assert site.post("/embed_sparse", {"model": "plain", "inputs": TEXT}, 422)["error_type"]


def test_teis_vectors_of_tokens(site: Site) -> None:
    body = site.post("/embed_all", {"model": "plain", "inputs": ["rain"]})
    assert np.allclose(body[0], site.bare("plain").output("rain"), atol=1e-5)


def test_teis_predictions(site: Site) -> None:
    single = site.post("/predict", {"inputs": TEXT})
    assert {each["label"] for each in single} == {*LABELS}
    scores = [each["score"] for each in single]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1)
    for item in site.post("/predict", {"inputs": [[TEXT]] * 5}):
        assert [each["label"] for each in item] == [each["label"] for each in single]
        assert [each["score"] for each in item] == pytest.approx(scores, abs=1e-6)
    mixed = site.post("/predict", {"inputs": [[TEXT], ["the cat", "rain"]]})
    assert [each["score"] for each in mixed[0]] == pytest.approx(scores, abs=1e-6)
    pair = site.post("/predict", {"inputs": ["the cat", "rain"]})
    assert [each["score"] for each in mixed[1]] == pytest.approx([each["score"] for each in pair])
    raw = site.post("/predict", {"inputs": TEXT, "raw_scores": True})
    logits = sorted(site.bare("labels").output(TEXT), reverse=True)
    assert np.allclose([each["score"] for each in raw], logits, atol=1e-4)


def test_teis_ranks(site: Site) -> None:
    asked = {"query": "rain", "texts": ["rain", "the dog", "rain"], "return_text": True}
    body = site.post("/rerank", asked)
    by_index = {each["index"]: each for each in body}
    assert by_index[0]["score"] == pytest.approx(by_index[2]["score"])
    assert [by_index[index]["text"] for index in range(3)] == asked["texts"]
    plain = site.post("/rerank", {**asked, "return_text": False, "raw_scores": False})
    assert all(each.keys() == {"index", "score"} for each in plain)


def test_teis_similarities(site: Site) -> None:
    asked = {"source_sentence": "the cat", "sentences": ["rain", "the dog"]}
    bare = site.bare("prompted")
    for fields, prompt in (({}, ""), ({"parameters": {"prompt_name": "query"}}, "query : ")):
        body = site.post("/similarity", {"model": "prompted", "inputs": asked, **fields})
        first = bare.vector(f"{prompt}the cat")
        expected = [first @ bare.vector(prompt + text) for text in asked["sentences"]]
        assert np.allclose(body, expected, atol=1e-5)


def test_teis_tokens(site: Site) -> None:
    asked = {"model": "prompted", "inputs": ["the cat"]}
    (tokens,) = site.post("/tokenize", asked)
    assert [each["id"] for each in tokens] == encode("the cat")
    assert tokens[1].keys() == {"id", "text", "special", "start", "stop"}
    (prompted,) = site.post("/tokenize", {**asked, "prompt_name": "query"})
    assert [each["id"] for each in prompted] == encode("query : the cat")
    assert site.post("/tokenize", {**asked, "prompt_name": "none"}, 422)["error_type"]
    for ids, texts in ((encode("rain"), ["rain"]), ([encode("rain")] * 2, ["rain"] * 2)):
        assert site.post("/decode", {"model": "prompted", "ids": ids}) == texts


def test_teis_errors(site: Site) -> None:
    many = ["a"] * 2049
    for path, body, status, kind in (
        ("/embed", {"model": "plain", "inputs": []}, 400, "Empty"),
        ("/embed_sparse", {"inputs": []}, 400, "Empty"),
        ("/rerank", {"query": "a", "texts": []}, 400, "Empty"),
        ("/predict", {"inputs": []}, 400, "Empty"),
        ("/embed", {"model": "plain", "inputs": many}, 422, "Validation"),
        ("/embed", {"model": "plain", "inputs": "rain " * 90}, 422, "Validation"),
        ("/rerank", {"query": "a", "texts": many}, 422, "Validation"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "Validation"),
        ("/embed", {"model": "plain", "inputs": "a", "dimensions": 4}, 422, "Validation"),
        ("/embed", {"model": "plain", "inputs": "a", "prompt_name": "none"}, 422, "Validation"),
        ("/embed", {"model": "plain"}, 422, "Validation"),
    ):
        error = site.post(path, body, status)
        assert error.keys() == {"error", "error_type"}
        assert error["error_type"] == kind


def test_health(site: Site) -> None:
    response = site.http.get("/health")
    assert (response.status_code, response.content) == (200, b"")


def test_openais_route_without_a_model(site: Site) -> None:
    # Several embedders are loaded, and so the name is asked for.
    error = site.post("/v1/embeddings", {"input": TEXT}, 400)["error"]
    assert (error["param"], "'cut', 'plain', 'prompted'" in error["message"]) == ("model", True)
    body = site.post("/v1/embeddings", {"input": TEXT, "model": "plain"})
    assert body.keys() >= {"object", "data", "model", "usage"}


def test_routes_that_are_not_served(site: Site) -> None:
    assert site.http.post("/vertex", json={"instances": [{"inputs": TEXT}]}).status_code == 404
    # Metrics have a port of their own.
    assert site.http.get("/metrics").status_code == 404
