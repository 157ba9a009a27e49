"""OpenAI's API over a whole mesh, by the clients that its users have, beside bare onnxruntime."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import key_entry
from tests.support.mesh.mesh import Mesh, running
from tests.support.models import text_models
from tests.support.models.safetensors import encoded
from tests.support.models.text_models import BareModel

pytestmark = pytest.mark.slow

SIMILAR = {"source_sentence": "the cat", "sentences": ["the cat sat"]}
LABELS = ("safe", "toxic", "spam")


def no_batches(lead: str) -> str:
    """A configuration without batches. lead: the dimension before the tokens, if there is one."""
    inputs = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_INT64 dims: [ {lead}-1 ] }}'
        for name in text_models.INPUTS
    )
    output = f'name: "last_hidden_state" data_type: TYPE_FP32 dims: [ {lead}-1, 16 ]'
    return f'backend: "onnxruntime"\ninput [ {inputs} ]\noutput [ {{ {output} }} ]\n'


ENCODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hub": {"flat": True},
    "positions": {"with_positions": True, "with_types": False},
    "half": {"floats": "FP16"},
    "double": {"floats": "FP64", "ints": "INT32", "with_types": False},
    "whole": {"batch": False, "config": no_batches("")},
    "rows": {"config": no_batches("-1, ")},
}


class Site(NamedTuple):
    """The mesh, a key with all rights, and one for a single model."""

    mesh: Mesh
    repository: Path
    key: str
    limited_key: str
    # Closes clients.
    stack: ExitStack

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.http_port}/v1"

    def client(self, key: str = "") -> openai.OpenAI:
        client = openai.OpenAI(base_url=self.url, api_key=key or self.key, max_retries=0)
        return self.stack.enter_context(client)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of a call by curl."""
        command = ["curl", "-s", "-w", "\n%{http_code}", f"{self.url.removesuffix('/v1')}{path}"]
        command += ["-H", f"Authorization: Bearer {self.key}", "--data-binary", "@-"]
        done = subprocess.run(
            command, input=json.dumps(body), check=True, capture_output=True, text=True
        )
        content, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(content) if content else None

    def bare(self, model: str) -> BareModel:
        return BareModel(self.repository / model)


DENSE_WEIGHT = np.random.default_rng(5).normal(size=(6, text_models.SIZE)).astype(np.float32)
DENSE_BIAS = np.linspace(-1, 1, 6, dtype=np.float32)


def write_layers(folder: Path) -> None:
    """Write sentence-transformers' files of a mean, a dense layer, and vectors of length 1."""
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{place}_{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "2_Dense").mkdir()
    sizes = {"in_features": text_models.SIZE, "out_features": len(DENSE_BIAS), "bias": True}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(sizes))
    weights = encoded(linear__weight=DENSE_WEIGHT, linear__bias=DENSE_BIAS)
    (folder / "2_Dense" / "model.safetensors").write_bytes(weights)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("texts")
    for name, options in ENCODERS.items():
        text_models.export(repository / name, **options)
    text_models.export(repository / "cut", task="embed", dimensions=[4, 8])
    text_models.export(
        repository / "prompted", task="embed", prompts={"query": "query : ", "document": "mat "}
    )
    text_models.export(repository / "dense", flat=True)
    write_layers(repository / "dense")
    text_models.export(repository / "ranker", labels=("relevance",))
    text_models.export(repository / "labels", labels=LABELS)
    key, limited_key = make_key(), make_key()
    config = repository.parent / "auth.toml"
    config.write_text(
        '[anonymous]\nrights = ["health", "model-repository"]\n'
        + key_entry("all", key, "all")
        + key_entry("one", limited_key, "inference", "metadata", more='models = ["plain"]')
    )
    log = tmp_path_factory.mktemp("mesh") / "log"
    control = "--model-control-mode=explicit", "--load-model=*"
    flags = "--openai-api", f"--auth-config={config}", *control
    with running(repository, log, *flags) as mesh, ExitStack() as stack:
        yield Site(mesh, repository, key, limited_key, stack)


def test_a_dense_layer_behind_the_pooling(site: Site) -> None:
    texts = text_models.texts(5)
    response = site.client().embeddings.create(model="dense", input=texts)
    for text, item in zip(texts, response.data, strict=True):
        pooled = site.bare("dense").output(text).mean(axis=0)
        vector = np.tanh(DENSE_WEIGHT @ pooled + DENSE_BIAS)
        np.testing.assert_allclose(item.embedding, vector / np.linalg.norm(vector), atol=1e-6)
    status, scores = site.post("/similarity", {"model": "dense", "inputs": SIMILAR})
    assert status == 200
    assert len(scores) == 1


@pytest.mark.parametrize("model", ENCODERS)
def test_vectors_are_those_of_bare_onnxruntime(site: Site, model: str) -> None:
    texts = text_models.texts(100)
    response = site.client().embeddings.create(model=model, input=texts)
    bare = site.bare(model)
    expected = np.array([bare.vector(text) for text in texts])
    assert [each.index for each in response.data] == list(range(100))
    got = np.array([each.embedding for each in response.data])
    assert np.abs(got - expected).max() < (2e-3 if model == "half" else 1e-5)
    counts = [len(text_models.tokenizer().encode(text)) for text in texts]
    assert response.usage.prompt_tokens == response.usage.total_tokens == sum(counts)


def test_both_encodings_and_token_ids_give_the_same_vector(site: Site) -> None:
    embeddings = site.client().embeddings
    text = "the cat sat on the mat"
    ids = text_models.tokenizer().encode(text).ids
    responses = [
        embeddings.create(model="plain", input=text, encoding_format="float"),
        embeddings.create(model="plain", input=text, encoding_format="base64"),
        embeddings.create(model="plain", input=ids),
        embeddings.create(model="plain", input=[ids]),
        embeddings.create(model="plain/1", input=[text], user="somebody"),
    ]
    as_float, as_base64, *others = [each.data[0].embedding for each in responses]
    assert isinstance(as_base64, str)
    decoded = np.frombuffer(base64.b64decode(as_base64), "<f4")
    assert np.allclose(decoded, as_float, atol=1e-7)
    for other in others:
        assert np.allclose(other, as_float, atol=1e-7)


async def test_the_asynchronous_client(site: Site) -> None:
    async with openai.AsyncOpenAI(base_url=site.url, api_key=site.key) as client:
        response = await client.embeddings.create(model="plain", input="rain")
        names = [model.id async for model in client.models.list()]
    assert len(response.data[0].embedding) == text_models.SIZE
    assert set(names) >= {*ENCODERS, "cut", "ranker", "labels"}


def test_vectors_are_cut_where_the_model_allows_it(site: Site) -> None:
    client = site.client()
    response = client.embeddings.create(model="cut", input="the dog", dimensions=8)
    full = site.bare("cut").vector("the dog")[:8]
    assert np.allclose(response.data[0].embedding, full / np.linalg.norm(full), atol=1e-5)
    for model, dimensions in (("cut", 5), ("plain", 8)):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model=model, input="x", dimensions=dimensions)
        assert refused.value.param == "dimensions"


def test_prompts_are_put_in_front(site: Site) -> None:
    bare = site.bare("prompted")
    for field, name, prompt in (
        ("input_type", "search_query", "query : "),
        ("prompt_name", "document", "mat "),
        ("input_type", "passage", "mat "),
    ):
        response = site.client().embeddings.create(
            model="prompted", input="rain", extra_body={field: name}
        )
        expected = bare.vector(f"{prompt}rain")
        assert np.allclose(response.data[0].embedding, expected, atol=1e-5)


def test_a_long_text_is_refused_by_how_much_or_truncated(site: Site) -> None:
    client = site.client()
    text = "cat " * 100
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="plain", input=["dog", text])
    assert refused.value.code == "context_length_exceeded"
    assert "item 1 of 'input' has 102 tokens, 38 too many" in refused.value.message
    expected = site.bare("plain").vector("cat " * 62)
    for extra in ({"truncate": True}, {"truncate_prompt_tokens": -1}, {"truncate": "END"}):
        response = client.embeddings.create(model="plain", input=text, extra_body=extra)
        assert response.usage.prompt_tokens == text_models.MAX_TOKENS
        assert np.allclose(response.data[0].embedding, expected, atol=1e-5)


def test_errors_are_openais(site: Site) -> None:
    client = site.client()
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="nothing", input="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.embeddings.create(model="plain", input="x", extra_body={"zoom": 1})
    assert unknown.value.message.endswith("Unknown parameter: 'zoom'.") or unknown.value.param
    assert unknown.value.code == "unknown_parameter"
    with pytest.raises(openai.BadRequestError, match="cannot do this"):
        client.embeddings.create(model="ranker", input="x")
    with pytest.raises(openai.AuthenticationError) as no_key:
        site.client("wrong").embeddings.create(model="plain", input="x")
    assert no_key.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as no_route:
        client.post("/nothing", cast_to=object)
    assert no_route.value.type == "invalid_request_error"


def test_a_key_for_one_model_sees_and_uses_that_model_alone(site: Site) -> None:
    client = site.client(site.limited_key)
    assert [model.id for model in client.models.list()] == ["plain"]
    assert client.embeddings.create(model="plain", input="x").data
    for call in (
        lambda: client.embeddings.create(model="half", input="x"),
        lambda: client.embeddings.create(model="half/1", input="x"),
        lambda: client.models.retrieve("half"),
    ):
        with pytest.raises(openai.PermissionDeniedError) as refused:
            call()
        assert refused.value.code == "insufficient_permissions"


def test_a_model_is_described_for_kserves_clients_too(site: Site) -> None:
    model = site.client().models.retrieve("plain").model_dump()
    assert (model["id"], model["name"], model["ready"]) == ("plain", "plain", True)
    assert model["created"] > 1_700_000_000
    assert model["max_model_len"] == text_models.MAX_TOKENS


def test_langchains_embeddings(site: Site) -> None:
    embeddings = OpenAIEmbeddings(
        model="plain",
        base_url=site.url,
        api_key=SecretStr(site.key),
        check_embedding_ctx_length=False,
        http_client=site.stack.enter_context(openai.DefaultHttpxClient()),
    )
    bare = site.bare("plain")
    documents = ["the cat sat", "rain"]
    vectors = embeddings.embed_documents(documents)
    assert np.allclose(vectors, [bare.vector(text) for text in documents], atol=1e-5)
    assert np.allclose(embeddings.embed_query("dog"), bare.vector("dog"), atol=1e-5)


def test_ranks_are_those_of_bare_onnxruntime(site: Site) -> None:
    bare = site.bare("ranker")
    texts = text_models.texts(50)
    raw = [float(bare.output("the cat", text)[0]) for text in texts]
    order = sorted(range(50), key=lambda index: -raw[index])
    status, body = site.post(
        "/rerank", {"query": "the cat", "texts": texts, "raw_scores": True, "return_text": True}
    )
    assert status == 200
    assert [rank["index"] for rank in body] == order
    assert np.allclose([rank["score"] for rank in body], sorted(raw, reverse=True), atol=1e-4)
    assert [rank["text"] for rank in body] == [texts[index] for index in order]
    passages = [{"text": text} for text in texts]
    status, body = site.post(
        "/v1/ranking", {"model": "ranker", "query": {"text": "the cat"}, "passages": passages}
    )
    assert status == 200
    assert [rank["index"] for rank in body["rankings"]] == order
    assert np.allclose([rank["logit"] for rank in body["rankings"]], sorted(raw, reverse=True))
    asked = {"model": "ranker", "query": "the cat", "documents": texts, "top_n": 3}
    for path, returns in (("/v1/rerank", True), ("/v2/rerank", False), ("/rerank", True)):
        status, body = site.post(path, asked)
        assert status == 200
        assert len(body["results"]) == 3
        assert all(("document" in result) == returns for result in body["results"])
        scores = [result["relevance_score"] for result in body["results"]]
        expected = [1 / (1 + np.exp(-raw[index])) for index in order[:3]]
        assert np.allclose(scores, expected, atol=1e-5)


def test_long_documents_are_truncated_as_by_cohere(site: Site) -> None:
    asked: dict[str, Any] = {"model": "ranker", "query": "the cat", "documents": ["rain " * 90]}
    status, body = site.post("/v1/rerank", asked)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert site.post("/v2/rerank", asked)[1]["usage"]["total_tokens"] == text_models.MAX_TOKENS
    status, body = site.post("/v2/rerank", {**asked, "max_tokens_per_doc": 7})
    assert body["usage"]["total_tokens"] == 5 + 7
    score = site.bare("ranker").output("the cat", "rain " * 7)[0]
    assert np.isclose(body["results"][0]["relevance_score"], 1 / (1 + np.exp(-score)), atol=1e-5)


def test_scores_of_a_ranker_and_of_an_embedder(site: Site) -> None:
    texts = ["rain", "the dog", "rates rose"]
    status, body = site.post("/v1/score", {"model": "plain", "text_1": "the cat", "text_2": texts})
    bare = site.bare("plain")
    expected = [float(bare.vector("the cat") @ bare.vector(text)) for text in texts]
    assert status == 200
    assert np.allclose([each["score"] for each in body["data"]], expected, atol=1e-5)
    asked = {"inputs": {"source_sentence": "the cat", "sentences": texts}, "model": "plain"}
    assert np.allclose(site.post("/similarity", asked)[1], expected, atol=1e-5)
    status, body = site.post("/score", {"model": "ranker", "text_1": texts, "text_2": texts[:2]})
    assert (status, body["error"]["param"]) == (400, "text_1")


def test_labels_of_all_apis(site: Site) -> None:
    texts = text_models.texts(5)
    bare = site.bare("labels")
    logits = np.array([bare.output(text) for text in texts])
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    _, body = site.post("/v1/classify", {"model": "labels", "input": texts})
    assert np.allclose([each["probs"] for each in body["data"]], probabilities, atol=1e-5)
    best = [LABELS[index] for index in probabilities.argmax(axis=1)]
    assert [each["label"] for each in body["data"]] == best
    _, body = site.post("/predict", {"inputs": [[text] for text in texts], "model": "labels"})
    assert [each[0]["label"] for each in body] == best
    moderation = site.client().moderations.create(input=texts)
    for result, row in zip(moderation.results, probabilities, strict=True):
        assert result.flagged == (row[1] >= 0.5 or row[2] >= 0.5)
        scores = result.category_scores.model_dump()
        assert np.allclose([scores[label] for label in LABELS], row, atol=1e-5)


def test_vectors_of_other_apis(site: Site) -> None:
    bare = site.bare("plain")
    texts = ["the cat", "rain rose"]
    vectors = [bare.vector(text) for text in texts]
    tokens = [bare.output(text) for text in texts]
    _, body = site.post("/embed", {"inputs": texts, "model": "plain"})
    assert np.allclose(body, vectors, atol=1e-5)
    _, body = site.post("/embed", {"inputs": "rain", "model": "plain", "normalize": False})
    assert np.allclose(body, [bare.output("rain").mean(axis=0)], atol=1e-5)
    _, body = site.post("/embed_all", {"inputs": texts, "model": "plain"})
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(body, tokens, strict=True))
    for fields, expected in (({}, vectors), ({"task": "token_embed"}, tokens)):
        _, body = site.post("/pooling", {"model": "plain", "input": texts, **fields})
        data = [each["data"] for each in body["data"]]
        assert all(np.allclose(*pair, atol=1e-5) for pair in zip(data, expected, strict=True))
    _, body = site.post("/v1/pooling", {"model": "labels", "input": "rain"})
    assert np.isclose(sum(body["data"][0]["data"]), 1)
    many = {"model": "plain", "inputs": text_models.texts(1000)}
    status, body = site.post("/embed_all", many)
    assert (status, "send several requests" in body["error"]) == (422, True)
    assert len(site.post("/embed", many)[1]) == 1000


def test_tokens_and_back(site: Site) -> None:
    encoding = text_models.tokenizer().encode("the cat")
    asked = {"model": "plain", "prompt": "the cat", "return_token_strs": True}
    _, body = site.post("/tokenize", asked)
    assert (body["tokens"], body["token_strs"]) == (encoding.ids, encoding.tokens)
    assert body["max_model_len"] == text_models.MAX_TOKENS
    _, body = site.post("/tokenize", {"model": "plain", "inputs": ["the cat"]})
    assert [token["id"] for token in body[0]] == encoding.ids
    assert (body[0][1]["start"], body[0][1]["stop"], body[0][1]["special"]) == (0, 3, False)
    _, body = site.post("/decode", {"model": "plain", "ids": encoding.ids})
    assert body == ["the cat"]
    _, body = site.post("/detokenize", {"model": "plain", "tokens": encoding.ids})
    assert body == {"prompt": "[CLS] the cat [SEP]"}


def test_a_new_version_serves_the_next_call(site: Site, tmp_path: Path) -> None:
    client = site.client()
    folder = site.repository / "half"
    text_models.export(tmp_path / "next", seed=2)
    shutil.copytree(tmp_path / "next" / "1", folder / "2")
    status, _ = site.post("/v2/repository/models/half/load", {})
    assert status == 200
    response = client.embeddings.create(model="half", input="the cat")
    expected = BareModel(tmp_path / "next").vector("the cat")
    assert np.allclose(response.data[0].embedding, expected, atol=1e-5)
