"""Published tests of vLLM, Text Embeddings Inference, Envoy AI Gateway and OpenResponses.

They are here in their meaning; text_servers.csv says which function stands for which of them, and
why some differ.
"""

from __future__ import annotations

import base64
import csv
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import numpy as np
import openai
import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import generators, text_models
from tests.support.models.text_models import MAX_TOKENS, BareModel

pytestmark = pytest.mark.slow

TABLE = Path(__file__).parent / "text_servers.csv"
PAGE = Path(__file__).parents[4] / "docs" / "operators" / "openai-api.md"
LABELS = ("safe", "toxic", "spam")
TEXT = "the cat sat on the mat"
QUERIES = ["the cat", "the dog"]
DOCUMENTS = ["cat sat", "rain rose"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }} mat {% endfor %}"
    "{% if add_generation_prompt %}query :{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "the cat sat"},
    {"role": "assistant", "content": "rain rose"},
    {"role": "user", "content": "the dog"},
]
PROMPT = "user: the cat sat mat assistant: rain rose mat user: the dog mat "
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Kiel"}}\n</tool_call>'
ANTHROPIC_TOOL: Any = {
    "name": "get_weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}},
}


class Site(NamedTuple):
    mesh: Mesh
    repository: Path
    http: httpx.Client
    client: openai.OpenAI
    anthropic: anthropic.Anthropic

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.mesh.http_port}"

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        """The JSON of a call, which has to have this status."""
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    def bare(self, model: str) -> BareModel:
        return BareModel(self.repository / model)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    repository = tmp_path_factory.mktemp("published")
    text_models.export(repository / "plain", template=TEMPLATE)
    text_models.export(repository / "cut", task="embed", dimensions=[4, 8])
    text_models.export(
        repository / "prompted", task="embed", prompts={"query": "query : ", "document": "mat "}
    )
    text_models.export(repository / "ranker", labels=("relevance",))
    text_models.export(repository / "labels", labels=LABELS, template=TEMPLATE)
    text_models.export(repository / "sparse", splade=True)
    text_models.export(repository / "decide", labels=("relevance",), task="decide")
    generators.python_generator(repository / "chat", "own", generation={"tool_parser": "hermes"})
    generators.logits_generator(repository / "logits", max_tokens=2048)
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, "--openai-api") as mesh, ExitStack() as stack:
        url = f"http://127.0.0.1:{mesh.http_port}"
        http = httpx.Client(base_url=url, timeout=60)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        other = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        for each in (http, client, other):
            stack.enter_context(each)
        yield Site(mesh, repository, http, client, other)


def encode(text: str, pair: str | None = None) -> list[int]:
    ids: list[int] = text_models.tokenizer().encode(text, pair).ids
    return ids


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_is_whole() -> None:
    table = rows()
    assert len({(row["source"], row["test"]) for row in table}) == len(table)
    for row in table:
        assert row["result"] in {"passes", "differs", "cannot apply"}, row
        assert bool(row["reason"]) == (row["result"] != "passes"), row
        if row["result"] == "passes" or row["ours"]:
            assert row["ours"] in globals(), row
    ours = {name for name in globals() if name.startswith("test_")}
    assert ours - {row["ours"] for row in table} == {"test_the_table_is_whole"}
    counts = Counter((row["source"].partition(": ")[0], row["result"]) for row in table)
    for source in {source for source, _ in counts}:
        numbers = (counts[source, result] for result in ("passes", "differs", "cannot apply"))
        line = f"| {source} | {' | '.join(map(str, numbers))} |"
        assert line in PAGE.read_text(), f"{PAGE} lacks the line: {line}"


# vLLM


@pytest.mark.parametrize("model", ["plain", "labels", "ranker"])
def test_models_and_tokens(site: Site, model: str) -> None:
    assert model in [each.id for each in site.client.models.list().data]
    body = site.post("/tokenize", {"model": model, "prompt": TEXT})
    assert (body["tokens"], body["count"]) == (encode(TEXT), len(encode(TEXT)))
    assert body["max_model_len"] == MAX_TOKENS


@pytest.mark.parametrize("content", [TEXT, encode(TEXT), [TEXT] * 10, [encode(TEXT)] * 10])
def test_vectors_and_usage(site: Site, content: Any) -> None:
    count = 10 if isinstance(content[0], list) or content == [TEXT] * 10 else 1
    response = site.client.embeddings.create(model="plain", input=content, encoding_format="float")
    vector = site.bare("plain").vector(TEXT)
    assert len(response.data) == count
    for each in response.data:
        assert np.allclose(each.embedding, vector, atol=1e-5)
    assert response.usage.prompt_tokens == len(encode(TEXT)) * count
    assert response.usage.total_tokens == response.usage.prompt_tokens


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
def test_truncation(site: Site, path: str) -> None:
    model = "labels" if path == "/classify" else "plain"
    asked = {"model": model, "input": "rain " * 90}
    for size, expected in ((10, 10), (-1, MAX_TOKENS)):
        body = site.post(path, {**asked, "truncate_prompt_tokens": size})
        assert body["usage"]["prompt_tokens"] == expected
    ids = {"model": model, "input": encode("rain " * 30), "truncate_prompt_tokens": 10}
    assert site.post(path, ids)["usage"]["prompt_tokens"] == 10
    body = site.post(path, {**asked, "truncate_prompt_tokens": MAX_TOKENS + 1}, 400)
    assert "truncate_prompt_tokens" in body["error"]["message"]
    assert site.post(path, asked, 400)["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
def test_messages_as_input(site: Site, path: str) -> None:
    model = "labels" if path == "/classify" else "plain"
    asked = {"model": model, "messages": MESSAGES}

    def values(body: Any) -> Any:
        (item,) = body["data"]
        return item.get("embedding") or item.get("probs") or item["data"]

    written = PROMPT.rstrip()
    whole = site.post(path, asked)
    text = {"model": model, "input": written, "add_special_tokens": False}
    same = site.post(path, text)
    assert np.allclose(values(whole), values(same), atol=1e-6)
    assert whole["usage"] == same["usage"]
    for fields, expected in (
        ({"add_generation_prompt": True}, f"{PROMPT}query :"),
        ({"continue_final_message": True}, written.removesuffix(" mat")),
        ({"add_special_tokens": True}, None),
    ):
        body = site.post(path, {**asked, **fields})
        if expected is None:
            count = whole["usage"]["prompt_tokens"] + 2
        else:
            count = len(encode(expected)) - 2
        assert body["usage"]["prompt_tokens"] == count
    both = {**asked, "continue_final_message": True, "add_generation_prompt": True}
    assert "exclude each other" in site.post(path, both, 400)["error"]["message"]
    body = site.post(path, {**asked, "model": "cut"}, 400)
    assert "error" in body


def decoded(content: bytes, number_type: str, endianness: str) -> Any:
    order = ">" if endianness == "big" else "<"
    if number_type == "bfloat16":
        bits = np.frombuffer(content, f"{order}u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    return np.frombuffer(content, f"{order}f{ {'float32': 4, 'float16': 2}[number_type] }")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_encodings(site: Site, path: str) -> None:
    asked = {"model": "plain", "input": [TEXT, "rain"]}
    expected = np.array([site.bare("plain").vector(text) for text in asked["input"]])
    field = "embedding" if path == "/v1/embeddings" else "data"
    for number_type in ("float32", "float16", "bfloat16"):
        for endianness in ("native", "little", "big"):
            form = {"embed_dtype": number_type, "endianness": endianness}
            body = site.post(path, {**asked, **form, "encoding_format": "base64"})
            contents = [base64.b64decode(each[field]) for each in body["data"]]
            vectors = [decoded(content, number_type, endianness) for content in contents]
            assert np.allclose(vectors, expected, atol=4e-3)
            for encoding in ("bytes", "bytes_only"):
                response = site.http.post(path, json={**asked, **form, "encoding_format": encoding})
                assert response.headers["content-type"] == "application/octet-stream"
                assert response.content == b"".join(contents)
                if encoding == "bytes_only":
                    assert "metadata" not in response.headers
                    continue
                metadata = json.loads(response.headers["metadata"])
                assert metadata["usage"]["prompt_tokens"] == len(encode(TEXT)) + 3
                for item, content in zip(metadata["data"], contents, strict=True):
                    assert response.content[item["start"] : item["end"]] == content
                    assert (item["embed_dtype"], item["shape"]) == (number_type, [16])
    # The client asks for base64, and decodes it.
    default = site.client.embeddings.create(model="plain", input=[TEXT, "rain"])
    assert np.allclose([each.embedding for each in default.data], expected, atol=1e-5)
    many = {**asked, "input": ["rain"] * 1000, "encoding_format": "bytes"}
    assert site.post(path, many, 400)["error"]["param"] == "encoding_format"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("name", ["encoding_format", "embed_dtype", "endianness"])
def test_unknown_encodings(site: Site, path: str, name: str) -> None:
    error = site.post(path, {"model": "plain", "input": TEXT, name: f"bad_{name}"}, 400)["error"]
    assert error["param"] == name
    assert f"bad_{name}" in error["message"]


def test_use_activation(site: Site) -> None:
    def vector(**fields: Any) -> Any:
        body = site.post("/v1/embeddings", {"model": "plain", "input": TEXT, **fields})
        return np.array(body["data"][0]["embedding"])

    assert np.allclose(vector(), vector(use_activation=True))
    raw = vector(use_activation=False)
    assert np.allclose(raw, site.bare("plain").output(TEXT).mean(axis=0), atol=1e-5)
    assert np.allclose(vector(), raw / np.linalg.norm(raw), atol=1e-5)

    def classes(**fields: Any) -> Any:
        return site.post("/classify", {"model": "labels", "input": TEXT, **fields})["data"][0]

    powers = np.exp(site.bare("labels").output(TEXT))
    for name in ("use_activation", "activation", "softmax"):
        assert np.allclose(classes(**{name: True})["probs"], powers / powers.sum(), atol=1e-5)
        logits = classes(**{name: False})["probs"]
        assert np.allclose(logits, np.log(powers), atol=1e-4)

    def scores(**fields: Any) -> Any:
        asked = {"model": "ranker", "query": QUERIES[0], "documents": DOCUMENTS, **fields}
        return np.array(
            [each["relevance_score"] for each in site.post("/rerank", asked)["results"]]
        )

    for name in ("use_activation", "activation"):
        raw = scores(**{name: False})
        assert np.allclose(scores(), scores(**{name: True}))
        assert np.allclose(1 / (1 + np.exp(-raw)), scores(), atol=1e-5)


def test_pooling_tasks(site: Site) -> None:
    def pooled(model: str, **fields: Any) -> Any:
        asked = {"model": model, "input": TEXT, "encoding_format": "float", **fields}
        (item,) = site.post("/pooling", asked)["data"]
        return np.array(item["data"])

    assert pooled("plain", task="embed").shape == (16,)
    assert pooled("plain", task="token_embed").shape == (len(encode(TEXT)), 16)
    assert pooled("labels", task="classify").shape == (3,)
    assert pooled("ranker", task="classify").shape == (1,)
    assert pooled("ranker").shape == (1,)


@pytest.mark.parametrize(
    ("model", "tasks"),
    [
        ("plain", ("classify", "token_classify", "plugin")),
        ("labels", ("embed", "token_embed", "token_classify", "plugin")),
        ("ranker", ("embed", "token_embed", "plugin")),
    ],
)
def test_pooling_refuses_tasks(site: Site, model: str, tasks: tuple[str, ...]) -> None:
    for task in tasks:
        body = site.post("/pooling", {"model": model, "input": TEXT, "task": task}, 400)
        assert body["error"]["param"] == "task"
        assert task in body["error"]["message"]


def test_dimensions(site: Site) -> None:
    full = site.client.embeddings.create(model="cut", input=TEXT).data[0].embedding
    for size in (4, 8):
        short = site.client.embeddings.create(model="cut", input=TEXT, dimensions=size)
        vector = np.array(full[:size])
        assert np.allclose(short.data[0].embedding, vector / np.linalg.norm(vector), atol=1e-5)
    for model, wrong in (("cut", -1), ("cut", 5), ("plain", -1), ("plain", 16)):
        with pytest.raises(openai.BadRequestError):
            site.client.embeddings.create(model=model, input=TEXT, dimensions=wrong)


@pytest.mark.parametrize("content", [TEXT, encode(TEXT), [TEXT] * 10, [encode(TEXT)] * 10])
def test_classes(site: Site, content: Any) -> None:
    body = site.post("/classify", {"model": "labels", "input": content})
    count = 10 if isinstance(content[0], list) or content == [TEXT] * 10 else 1
    assert (body["object"], body["model"], len(body["data"])) == ("list", "labels", count)
    for index, item in enumerate(body["data"]):
        assert item["index"] == index
        assert item["label"] in LABELS
        assert len(item["probs"]) == item["num_classes"] == 3


def test_empty_texts_are_classified(site: Site) -> None:
    assert site.post("/classify", {"model": "labels", "input": ""})["usage"]["prompt_tokens"] == 2
    assert "error" in site.post("/classify", {"model": "labels", "input": []}, 400)


def test_special_tokens_are_left_out(site: Site) -> None:
    for path in ("/classify", "/v1/embeddings"):
        asked = {"model": "labels" if path == "/classify" else "plain", "input": TEXT}
        counts = [
            site.post(path, {**asked, "add_special_tokens": added})["usage"]["prompt_tokens"]
            for added in (True, False)
        ]
        assert counts == [len(encode(TEXT)), len(encode(TEXT)) - 2]


def test_a_classifier_ranks_nothing(site: Site) -> None:
    score = {"model": "labels", "queries": "rain", "documents": "mat"}
    rerank = {"model": "labels", "query": "rain", "documents": ["mat"]}
    for path, body in (("/score", score), ("/rerank", rerank)):
        assert site.post(path, body, 400)["error"]["code"] == "model_not_supported"


@pytest.mark.parametrize("model", ["ranker", "plain"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("queries", "documents"),
        ("queries", "items"),
        ("text_1", "text_2"),
        ("data_1", "data_2"),
    ],
)
def test_scores(site: Site, model: str, first: str, second: str) -> None:
    bare = site.bare(model)

    def expected(query: str, document: str) -> float:
        if model == "plain":
            return float(bare.vector(query) @ bare.vector(document))
        return float(1 / (1 + np.exp(-bare.output(query, document)[0])))

    for queries, documents in (
        (QUERIES[0], DOCUMENTS[0]),
        (QUERIES[0], DOCUMENTS),
        (QUERIES, DOCUMENTS),
    ):
        body = site.post("/score", {"model": model, first: queries, second: documents})
        firsts = [queries] if isinstance(queries, str) else queries
        seconds = [documents] if isinstance(documents, str) else documents
        pairs = zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True)
        scores = [expected(*pair) for pair in pairs]
        assert np.allclose([each["score"] for each in body["data"]], scores, atol=1e-5)
        assert body["id"]
    assert site.post("/score", {"model": model, first: "a"}, 400)["error"]["param"] == "documents"


@pytest.mark.parametrize("model", ["ranker", "plain"])
def test_ranks(site: Site, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "query": "the cat",
        "documents": ["rain rose", "the cat sat", "rates"],
    }
    body = site.post("/rerank", asked)
    scores = [each["relevance_score"] for each in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(each["index"] for each in body["results"]) == [0, 1, 2]
    for count, expected in ((0, 3), (1, 1), (2, 2), (9, 3)):
        body = site.post("/rerank", {**asked, "top_n": count})
        assert [each["relevance_score"] for each in body["results"]] == scores[:expected]
    assert site.post("/rerank", {**asked, "top_n": -1}, 400)["error"]["param"] == "top_n"
    assert len(site.post("/rerank", {**asked, "documents": "rain"})["results"]) == 1


@pytest.mark.parametrize("model", ["ranker", "plain"])
def test_pairs_that_are_too_long(site: Site, model: str) -> None:
    query = "the cat " * 50
    for path, body in (
        ("/rerank", {"model": model, "query": query, "documents": DOCUMENTS}),
        ("/score", {"model": model, "queries": query, "documents": DOCUMENTS}),
    ):
        error = site.post(path, body, 400)["error"]
        assert error["code"] == "context_length_exceeded"
        assert "Shorten it" in error["message"]
        error = site.post(path, {**body, "truncate_prompt_tokens": 65}, 400)["error"]
        assert error["param"] == "truncate_prompt_tokens"
        assert site.post(path, {**body, "truncate_prompt_tokens": 60})


def test_tokens_of_documents_are_bounded(site: Site) -> None:
    asked = {"model": "ranker", "query": "the cat", "documents": ["rain " * 30]}
    whole = site.post("/rerank", asked)["usage"]["prompt_tokens"]
    bounded = site.post("/rerank", {**asked, "max_tokens_per_doc": 10})
    assert len(bounded["results"]) == 1
    assert bounded["usage"]["prompt_tokens"] == whole - 20
    for wrong in (0, -5):
        error = site.post("/rerank", {**asked, "max_tokens_per_doc": wrong}, 400)["error"]
        assert error["param"] == "max_tokens_per_doc"


def test_lists_are_bounded(site: Site) -> None:
    many = ["a"] * 2049
    for path, body in (
        ("/score", {"model": "ranker", "queries": ["a"], "documents": many}),
        ("/score", {"model": "ranker", "queries": ["a"], "items": many}),
        ("/score", {"model": "ranker", "text_1": "a", "text_2": many}),
        ("/rerank", {"model": "ranker", "query": "a", "documents": many}),
        ("/pooling", {"model": "plain", "input": many}),
        ("/pooling", {"model": "plain", "input": [[5]] * 2049}),
        ("/classify", {"model": "labels", "input": many}),
    ):
        assert site.post(path, body, 400)["error"]["code"] == "array_above_max_length"
    # Of a single text's tokens, only their number counts.
    assert site.post("/pooling", {"model": "plain", "input": [5] * 60})


def test_tokens_of_chats(site: Site) -> None:
    def tokens(**fields: Any) -> Any:
        return site.post("/tokenize", {"model": "chat", "messages": MESSAGES, **fields})

    prompt = "".join(f"<{each['role']}>{each['content']}" for each in MESSAGES)
    encoder = generators.tokenizer()
    for added, written in ((False, prompt), (True, f"{prompt}<assistant>")):
        for special in (False, True):
            body = tokens(add_generation_prompt=added, add_special_tokens=special)
            assert body["tokens"] == encoder.encode(written, add_special_tokens=special).ids
            assert (body["count"], body["token_strs"]) == (len(body["tokens"]), None)
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    body = tokens(tools=[{"type": "function", "function": tool}], return_token_strs=True)
    text = encoder.decode(body["tokens"])
    assert "<tools>" in text
    assert '"name": "get_weather"' in text
    assert len(body["token_strs"]) == body["count"]


def test_tokens_and_back(site: Site) -> None:
    for special in (False, True):
        expected = text_models.tokenizer().encode(TEXT, add_special_tokens=special)
        asked = {"model": "plain", "prompt": TEXT, "add_special_tokens": special}
        body = site.post("/tokenize", {**asked, "return_token_strs": True})
        assert (body["tokens"], body["token_strs"]) == (expected.ids, expected.tokens)
        assert site.post("/tokenize", asked)["token_strs"] is None
    ids = text_models.tokenizer().encode(TEXT, add_special_tokens=False).ids
    assert site.post("/detokenize", {"model": "plain", "tokens": ids}) == {"prompt": TEXT}


# Cohere's API, as vLLM tests it


def cohere(site: Site, texts: list[str], status: int = 200, **fields: Any) -> Any:
    return site.post("/v2/embed", {"model": "cut", "texts": texts, **fields}, status)


def test_coheres_vectors(site: Site) -> None:
    texts = ["the cat", "rain", "the dog"]
    body = cohere(site, texts, embedding_types=["float", "base64", "binary", "ubinary"])
    vectors = body["embeddings"]
    expected = np.array([site.bare("cut").vector(text) for text in texts])
    assert np.allclose(vectors["float"], expected, atol=1e-5)
    assert np.allclose(np.linalg.norm(vectors["float"], axis=1), 1, atol=1e-5)
    contents = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors["base64"]]
    assert np.allclose(contents, expected, atol=1e-5)
    bits = np.packbits(expected > 0, axis=1)
    assert vectors["ubinary"] == bits.tolist()
    assert vectors["binary"] == (bits.astype(int) - 128).tolist()
    assert body["id"]
    assert body["texts"] == texts
    assert body["meta"]["api_version"]["version"] == "2"
    count = sum(len(encode(text)) for text in texts)
    assert body["meta"]["tokens"]["input_tokens"] == count
    assert cohere(site, texts)["embeddings"].keys() == {"float"}
    short = cohere(site, texts, output_dimension=4, embedding_types=["float"])
    assert np.array(short["embeddings"]["float"]).shape == (3, 4)
    assert "message" in cohere(site, texts, 400, output_dimension=4, embedding_types=["binary"])
    same = site.client.embeddings.create(model="cut", input=texts)
    assert np.allclose([each.embedding for each in same.data], vectors["float"], atol=1e-6)


def test_coheres_types_of_input(site: Site) -> None:
    def vector(**fields: Any) -> Any:
        body = site.post("/v2/embed", {"model": "prompted", "texts": ["the cat"], **fields})
        return body["embeddings"]["float"][0]

    bare = site.bare("prompted")
    assert np.allclose(vector(), bare.vector("the cat"), atol=1e-5)
    query = vector(input_type="search_query")
    assert np.allclose(query, bare.vector("query : the cat"), atol=1e-5)
    body = cohere(site, ["the cat"], 400, input_type="nonexistent_type")
    assert "input_type" in body["message"] or "nonexistent_type" in body["message"]
    assert "message" in site.post("/v2/embed", {"model": "cut"}, 400)


def test_coheres_truncation(site: Site) -> None:
    text = "cat " * 80 + "rain " * 80
    bare = site.bare("cut")
    for truncate, expected in (
        (None, "cat " * 62),
        ("END", "cat " * 62),
        ("START", "rain " * 62),
    ):
        fields: dict[str, Any] = {} if truncate is None else {"truncate": truncate}
        body = cohere(site, [text], **fields)
        assert np.allclose(body["embeddings"]["float"][0], bare.vector(expected), atol=1e-5)
    assert "message" in cohere(site, [text], 400, truncate="NONE")
    for most, expected_tokens in ((9, 9), (100_000, MAX_TOKENS)):
        body = cohere(site, [text], max_tokens=most)
        assert body["meta"]["tokens"]["input_tokens"] == expected_tokens
    assert "max_tokens" in cohere(site, [text], 400, max_tokens=0)["message"]


# Anthropic's API, as vLLM tests it


def user(content: Any) -> Any:
    return [{"role": "user", "content": content}]


def test_anthropics_messages(site: Site) -> None:
    create: Any = site.anthropic.messages.create
    for more in ({}, {"system": "you are a cat"}):
        message = create(model="chat", max_tokens=100, messages=user("how are you!"), **more)
        assert (message.stop_reason, message.role) == ("end_turn", "assistant")
    events = list(create(model="chat", max_tokens=100, messages=user("how?"), stream=True))
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]


def test_anthropics_tools(site: Site) -> None:
    asked: Any = {"model": "chat", "max_tokens": 500, "tools": [ANTHROPIC_TOOL]}
    asked["messages"] = user(json.dumps({"say": CALL}, separators=(",", ": ")))
    message = site.anthropic.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("get_weather", {"location": "Kiel"})
    with site.anthropic.messages.stream(**asked) as stream:
        assert stream.get_final_message().content[0].to_dict()["input"] == {"location": "Kiel"}


USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Kiel"}}


@pytest.mark.parametrize(
    ("block", "is_valid"),
    [
        ({**USE, "id": None}, False),
        ({**USE, "id": ""}, False),
        ({**USE, "name": None}, False),
        ({**USE, "name": ""}, False),
        ({**USE, "input": None}, False),
        (USE, True),
        ({**USE, "input": {}}, True),
        ({"type": "tool_result"}, False),
        ({"type": "tool_result", "tool_use_id": ""}, False),
        ({"type": "tool_result", "tool_use_id": "toolu_1"}, True),
        ({"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}, True),
        ({"type": "text"}, False),
        ({"type": "text", "text": ""}, True),
        ({"type": "text", "text": "hello"}, True),
        ({"type": "thinking", "signature": "abc"}, False),
        ({"type": "thinking", "thinking": "rain?", "signature": "abc"}, True),
        ({"type": "thinking", "thinking": ""}, True),
        ({"type": "thinking", "thinking": "rain?"}, True),
        ({"type": "redacted_thinking"}, False),
        ({"type": "redacted_thinking", "data": ""}, False),
        ({"type": "redacted_thinking", "data": "opaque"}, True),
        ({"type": "image"}, False),
        ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, False),
        ({"type": "tool_reference", "tool_name": "search"}, False),
    ],
)
def test_anthropics_blocks(site: Site, block: dict[str, Any], is_valid: bool) -> None:
    present = {name: value for name, value in block.items() if value is not None}
    of_assistant = block["type"] in {"tool_use", "thinking", "redacted_thinking"}
    messages: list[Any] = user("the cat")
    if of_assistant:
        messages += [{"role": "assistant", "content": [present]}, *user("rain")]
    else:
        messages += [{"role": "assistant", "content": [USE]}, *user([present])]
    body = {"model": "chat", "max_tokens": 10, "messages": messages}
    response = site.http.post("/v1/messages", json=body)
    assert response.status_code == (200 if is_valid else 400), response.text
    if not is_valid:
        assert response.json()["error"]["type"] == "invalid_request_error"


# Text Embeddings Inference


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


# Envoy AI Gateway: the requests of its recorded exchanges, and the fields of their responses

CHOICE = {"finish_reason", "index"}
MESSAGE = {"content", "refusal", "role"}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}
SCHEMA = {
    "name": "final_output",
    "strict": True,
    "schema": {
        "$defs": {
            "Item": {
                "type": "object",
                "properties": {"found": {"type": "boolean"}},
                "required": ["found"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "properties": {
            "items": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/Item"}}
        },
        "required": ["items"],
        "additionalProperties": False,
    },
}


def check_usage(usage: dict[str, int]) -> None:
    assert usage.keys() >= {"completion_tokens", "prompt_tokens", "total_tokens"}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "messages": [
                {"role": "developer", "content": "Be helpful."},
                *user("Hello!"),
                {"role": "assistant", "content": "Hello! What is it?"},
                *user("How is the weather?"),
            ],
            "temperature": 1,
        },
        {
            "messages": [{"role": "developer", "content": "I write programs."}, *user("Hello!")],
            "max_completion_tokens": 100,
            "temperature": 1,
        },
    ],
)
def test_recorded_chats(site: Site, fields: dict[str, Any]) -> None:
    asked = {"model": "chat", "messages": user("Hello!"), **fields}
    body = site.post("/v1/chat/completions", asked)
    assert body.keys() >= {"choices", "created", "id", "model", "object", "usage"}
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice.keys() >= CHOICE | {"message"}
    assert choice["message"].keys() >= MESSAGE
    assert choice["message"]["content"] == asked["messages"][-1]["content"]
    check_usage(body["usage"])
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(site.client.chat.completions.create(**streamed))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert (chunks[-1].choices, usage.to_dict()) == ([], body["usage"])
    del streamed["stream_options"]
    plain = list(site.client.chat.completions.create(**streamed))
    assert [chunk.usage for chunk in plain] == [None] * len(plain)


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": True}])
def test_recorded_calls_of_tools(site: Site, fields: dict[str, Any]) -> None:
    say = json.dumps({"say": CALL}, separators=(",", ": "))
    asked = {"model": "chat", "messages": user(say), "tools": [TOOL], "tool_choice": "auto"}
    (choice,) = site.post("/v1/chat/completions", {**asked, **fields})["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message.keys() >= MESSAGE | {"tool_calls"}
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"location": "Kiel"}
    assert call["id"]


@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": SCHEMA}]
)
def test_recorded_json(site: Site, form: dict[str, Any]) -> None:
    asked = {"model": "logits", "messages": user("Make JSON."), "response_format": form, "seed": 4}
    body = site.post("/v1/chat/completions", {**asked, "max_completion_tokens": 300})
    (choice,) = body["choices"]
    if choice["finish_reason"] == "stop":
        made = json.loads(choice["message"]["content"])
        assert isinstance(made, dict)
        assert form["type"] == "json_object" or made.keys() == {"items"}
    else:
        # A model of random weights may go on with spaces or digits until its limit.
        assert choice["message"]["content"].lstrip().startswith("{")


def test_recorded_errors(site: Site) -> None:
    chats, completions = "/v1/chat/completions", "/v1/completions"
    for path, body, status, parameter, code in (
        (
            chats,
            {"model": "chat", "messages": user(None), "max_tokens": 0, "temperature": -0.5},
            400,
            None,
            None,
        ),
        (chats, {"model": "chat", "messages": []}, 400, "messages", "empty_array"),
        (chats, {"model": "none", "messages": user("Hello!")}, 404, "model", "model_not_found"),
        (
            completions,
            {"model": "logits", "prompt": "", "max_tokens": -1, "temperature": 3},
            400,
            "max_tokens",
            None,
        ),
        (completions, {"model": "none", "prompt": "a"}, 404, "model", "model_not_found"),
        ("/v1/embeddings", {"model": "none", "input": "a"}, 404, "model", "model_not_found"),
        (
            "/v1/embeddings",
            {"model": "plain", "input": [5], "dimensions": -1, "encoding_format": "invalid"},
            400,
            None,
            None,
        ),
    ):
        error = site.post(path, body, status)["error"]
        assert error.keys() == {"code", "message", "param", "type"}
        assert error["type"] == "invalid_request_error"
        assert parameter is None or error["param"] == parameter
        assert code is None or error["code"] == code


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"prompt": "def fib(n):"}, 1),
        ({"prompt": [100, 101, 102]}, 1),
        ({"prompt": ["def fib(n):", "if n:"], "n": 2, "stop": ["\n\n"]}, 4),
        ({"prompt": [[100, 101], [102]], "n": 2, "stop": ["\n\n"]}, 4),
    ],
)
def test_recorded_completions(site: Site, fields: dict[str, Any], texts: int) -> None:
    asked = {"model": "logits", "max_tokens": 25, "temperature": 0.5, "top_p": 0.9, "seed": 1}
    body = site.post("/v1/completions", {**asked, **fields})
    assert body.keys() >= {"choices", "created", "id", "model", "object", "usage"}
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in body["choices"]] == list(range(texts))
    for choice in body["choices"]:
        assert choice.keys() >= CHOICE | {"logprobs", "text"}
        assert choice["finish_reason"] in {"length", "stop"}
    check_usage(body["usage"])
    streamed = {**asked, **fields, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(site.client.completions.create(**streamed))
    written = [""] * texts
    for chunk in chunks:
        for each in chunk.choices:
            written[each.index] += each.text
    assert written == [choice["text"] for choice in body["choices"]]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.to_dict() == body["usage"]


def test_recorded_suffixes(site: Site) -> None:
    body = {"model": "logits", "prompt": "def fib(n):", "suffix": "print(fib(10))"}
    assert site.post("/v1/completions", body, 400)["error"]["param"] == "suffix"


@pytest.mark.parametrize(
    "content",
    [
        "How do I reset my password?",
        [5, 8, 9, 30],
        "cat " * (MAX_TOKENS - 2),
        ["Hello 世界! 🌍", "Здравствуй мир", "مرحبا بالعالم", "A longer text.", "🚀 ✨ § ¶ †"],
        ["   Leading", "Trailing   ", "some   between", "\tTabs\tand\nlines\r\nhere", "  \n  \t  "],
    ],
)
def test_recorded_embeddings(site: Site, content: Any) -> None:
    for encoding in ("float", "base64"):
        asked = {"model": "plain", "input": content, "encoding_format": encoding}
        body = site.post("/v1/embeddings", asked)
        assert body.keys() >= {"data", "model", "object", "usage"}
        assert body["usage"].keys() == {"prompt_tokens", "total_tokens"}
        for index, item in enumerate(body["data"]):
            assert item.keys() == {"embedding", "index", "object"}
            assert (item["index"], item["object"]) == (index, "embedding")
            assert isinstance(item["embedding"], list if encoding == "float" else str)


DELIVERY = {"name": "get_delivery_date", "arguments": '{"order": "123"}'}
SYSTEM = [{"role": "system", "content": "You are a chatbot."}]
CACHED = {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": SYSTEM}),
        ("/v1/chat/completions", {"messages": user([CACHED])}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *SYSTEM,
                    *user("When does order 123 come?"),
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c1", "type": "function", "function": DELIVERY}],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "Tomorrow."},
                ]
            },
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *user([{"type": "text", "text": "Say 1."}]),
                    {"role": "assistant", "content": [{"type": "text", "text": "1"}]},
                    *user("And 2."),
                ]
            },
        ),
        (
            "/v1/messages",
            {"max_tokens": 50, "messages": user([{"type": "text", "text": "Hello."}])},
        ),
        ("/v1/messages", {"max_tokens": 50, "messages": user("Hello."), "system": "Be helpful."}),
        (
            "/v1/messages",
            {
                "max_tokens": 50,
                "messages": user("Rain?"),
                "tools": [{**ANTHROPIC_TOOL, "type": "custom"}],
            },
        ),
        ("/v1/responses", {"input": "Say this.", "instructions": "Be helpful."}),
    ],
)
def test_requests_at_the_gateway(site: Site, path: str, fields: dict[str, Any]) -> None:
    body = site.post(path, {"model": "chat", **fields})
    assert body["model"] == "chat"
    response = site.http.post(path, json={"model": "chat", "stream": True, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.count("data: ") > 2


def test_a_body_that_is_no_json(site: Site) -> None:
    response = site.http.post("/v1/chat/completions", content=b'{"model": "chat", "messages": [a')
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


# OpenResponses


def message(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def check_response(body: dict[str, Any]) -> None:
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert isinstance(body["created_at"], int)
    nullable = {"error", "incomplete_details", "instructions", "previous_response_id"}
    nullable |= {"max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"}
    required = {"id", "model", "output", "tools", "tool_choice", "truncation", "text", "usage"}
    required |= {"parallel_tool_calls", "top_p", "temperature", "top_logprobs", "reasoning"}
    required |= {"presence_penalty", "frequency_penalty", "store", "background", "service_tier"}
    required |= {"metadata", "completed_at"}
    assert body.keys() >= required | nullable
    assert all(body[name] is not None for name in required)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"].keys() >= {"cached_tokens"}
    assert usage["output_tokens_details"].keys() >= {"reasoning_tokens"}
    assert body["output"]
    for item in body["output"]:
        assert item["id"]
        assert item["status"] == "completed"
        if item["type"] == "message":
            assert item["role"] == "assistant"
            for part in item["content"]:
                assert part["type"] == "output_text"
                assert part.keys() >= {"text", "annotations", "logprobs"}
        else:
            assert item.keys() >= {"call_id", "name", "arguments"}


@pytest.mark.parametrize(
    "messages",
    [
        [message("Say hello.")],
        [message("You are a pirate.", "system"), message("Say hello.")],
        [
            message("My name is Alice."),
            message("Hello Alice!", "assistant"),
            message("What is my name?"),
        ],
        [
            message("Look it up."),
            message("I look.", "assistant", phase="commentary"),
            message("It is 4.", "assistant", phase="final_answer"),
            message("Thanks."),
        ],
    ],
)
def test_responses(site: Site, messages: list[dict[str, Any]]) -> None:
    body = site.post("/v1/responses", {"model": "chat", "input": messages})
    check_response(body)
    (item,) = body["output"]
    assert item["content"][0]["text"] == messages[-1]["content"]


def test_streamed_responses(site: Site) -> None:
    asked = {"model": "chat", "input": [message("Count from 1 to 5.")], "stream": True}
    with site.http.stream("POST", "/v1/responses", json=asked) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if "data: " in line]
    if lines[-1] == "[DONE]":
        lines.pop()
    events = [json.loads(line) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events))
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    check_response(events[-1]["response"])


def test_responses_with_calls_of_tools(site: Site) -> None:
    say = json.dumps({"say": CALL}, separators=(",", ": "))
    tool = {"type": "function", **TOOL["function"]}
    asked = {"model": "chat", "input": [message(say)], "tools": [tool], "max_output_tokens": 500}
    body = site.post("/v1/responses", asked)
    check_response(body)
    (item,) = body["output"]
    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert json.loads(item["arguments"]) == {"location": "Kiel"}


def test_responses_refuse_images(site: Site) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    asked = {"model": "chat", "input": [message([{"type": "input_text", "text": "?"}, image])]}
    error = site.post("/v1/responses", asked, 400)["error"]
    assert error["param"] == "input[0].content[1].type"


# Decisions, as vLLM tests them


def choices(instructions: str, *names: str) -> dict[str, Any]:
    return {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(names)}


def test_system_one(site: Site) -> None:
    asked = {
        "model": "decide",
        "state": {"team": "the cat", "language": "rain"},
        "questions": {
            "team": choices("which team", "cat", "dog", "mat"),
            "urgent": {"type": "noul", "instructions": "rain"},
            "tone": {"type": "score", "instructions": "how", "criteria": ["dry", "wet", "rain"]},
        },
    }
    body = site.post("/v1/systemone", asked)
    results = body["answers"]
    assert list(results) == list(asked["questions"])
    team = results["team"]
    assert team["probabilities"].keys() == {"cat", "dog", "mat"}
    assert sum(team["probabilities"].values()) == pytest.approx(1)
    assert team["choice"] == max(team["probabilities"], key=team["probabilities"].get)
    assert 0 <= results["urgent"]["noul"] <= 1
    tone = results["tone"]
    expected = sum(index * share for index, share in enumerate(tone["probabilities"].values()))
    assert tone["score"] == pytest.approx(expected, abs=1e-6)
    assert body["usage"]["input_tokens"] > 0
    many = {"n": choices("which", *map(str, range(27)))}
    body = site.post("/v1/systemone", {"model": "decide", "state": "7", "questions": many})
    assert len(body["answers"]["n"]["probabilities"]) == 27


def test_errors_of_system_one(site: Site) -> None:
    for question in (
        choices("which team", "cat"),
        {"type": "noul", "criteria": ["yes", "no"]},
        {"type": "score", "criteria": ["calm"]},
    ):
        body = {"model": "decide", "state": "x", "questions": {"q": question}}
        assert site.post("/v1/systemone", body, 400)["error"]["message"]


def decide(site: Site, *questions: dict[str, Any], status: int = 200, **fields: Any) -> Any:
    asked = {"model": "decide", "input": "rain", "questions": questions, **fields}
    return site.post("/v1/decisions", asked, status)


PREDICATE = {"type": "predicate", "instructions": "rain"}


def choice_of(*values: Any) -> dict[str, Any]:
    made = [{"value": value} for value in values]
    return {"type": "choice", "instructions": "x", "choices": made}


def score_of(*levels: str) -> dict[str, Any]:
    made = [{"label": level} for level in levels]
    return {"type": "score", "instructions": "x", "levels": made}


def test_decisions(site: Site) -> None:
    questions = PREDICATE, choice_of(True, "true", False), score_of("low", "low", "high")
    holds, chosen, scored = decide(site, *questions)["answers"]
    assert (holds["name"], 0 <= holds["probability"] <= 1) == (None, True)
    values = [each["value"] for each in chosen["probabilities"]]
    assert [(type(value), value) for value in values] == [
        (bool, True),
        (str, "true"),
        (bool, False),
    ]
    shares = [each["probability"] for each in scored["probabilities"]]
    assert [each["value"] for each in scored["probabilities"]] == [0, 1, 2]
    assert scored["score"] == pytest.approx(shares[1] + 2 * shares[2], abs=1e-6)


def test_inputs_of_decisions(site: Site) -> None:
    parts = [{"type": "input_text", "text": text} for text in ("rain", "rose")]
    for given in ("", user([]), [*user("first"), message(parts)]):
        assert decide(site, PREDICATE, input=given)["answers"]
    image = [{"type": "input_image", "image_url": "https://example.com/a.png"}]
    error = decide(site, PREDICATE, input=user(image), status=400)["error"]
    assert "image" in error["message"]


def test_errors_of_decisions(site: Site) -> None:
    for question in (
        {**PREDICATE, "instructions": 1},
        {**PREDICATE, "criteria": {}},
        choice_of("a"),
        choice_of("a", "a"),
        choice_of(True, True),
        choice_of(1, "a"),
        choice_of(None, "a"),
        choice_of(*map(str, range(256))),
        score_of("a"),
    ):
        assert decide(site, question, status=400)["error"]["message"]
    assert len(decide(site, choice_of(*map(str, range(255))))["answers"]) == 1
    for fields in ({"input": {"text": "x"}}, {"stream": True}):
        assert decide(site, PREDICATE, status=400, **fields)["error"]["message"]
    assert decide(site, status=400)["error"]["param"] == "questions"
    assert decide(site, *[PREDICATE] * 401, status=400)["error"]["param"] == "questions"
