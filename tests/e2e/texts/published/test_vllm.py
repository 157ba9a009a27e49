"""Published tests of vLLM: pooling, scores, tokens, and Cohere's and Anthropic's APIs."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import openai
import pytest

from tests.e2e.texts.published.text_site import (
    ANTHROPIC_TOOL,
    CALL,
    DOCUMENTS,
    LABELS,
    MESSAGES,
    PROMPT,
    QUERIES,
    TEXT,
    Site,
    encode,
    user,
)
from tests.support.models import generators, text_models
from tests.support.models.text_models import MAX_TOKENS

pytestmark = pytest.mark.slow


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


def test_routes_that_are_not_served(site: Site) -> None:
    assert site.http.post("/invocations", json={"model": "plain", "input": TEXT}).status_code == 404
    assert site.http.get("/tokenizer_info").status_code == 404
