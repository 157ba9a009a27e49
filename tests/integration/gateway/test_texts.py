"""Calls of OpenAI's API as rows in a scheduler's queue: how many, in which order, until when."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import (
    ErrorStatus,
    InferRequest,
    InferResponse,
    ModelsChanged,
)
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.openai.bodies import Body
from nereid_gateway.extras.openai.endpoints.classification import (
    ClassifyBody,
    ModerationBody,
    PredictBody,
)
from nereid_gateway.extras.openai.endpoints.cohere_embeddings import CohereEmbedBody
from nereid_gateway.extras.openai.endpoints.embeddings import (
    EmbedAllBody,
    EmbedBody,
    EmbeddingsBody,
    PoolingBody,
)
from nereid_gateway.extras.openai.endpoints.ranking import (
    RankingBody,
    RerankBody,
    ScoreBody,
    SimilarityBody,
)
from nereid_gateway.extras.openai.endpoints.tokens import (
    DecodeBody,
    DetokenizeBody,
    TokenizeBody,
)
from nereid_gateway.guards.auth.api_key import make_key
from tests.support.gateway.auth_config import key_entry
from tests.support.gateway.gateway_http import ask, connect
from tests.support.gateway.gateway_site import FP32_TYPE, GatewaySite, gateway_site
from tests.support.models import text_models
from tests.support.waiting import until

INT64_TYPE = 9
WINDOW = 256
CALLS: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/embeddings": (EmbeddingsBody, {"model": "echo", "input": "cat"}),
    "/pooling": (PoolingBody, {"model": "echo", "input": "cat"}),
    "/embed": (EmbedBody, {"model": "echo", "inputs": "cat"}),
    "/v2/embed": (CohereEmbedBody, {"model": "echo", "texts": ["cat"]}),
    "/embed_all": (EmbedAllBody, {"model": "echo", "inputs": "cat"}),
    "/embed_sparse": (EmbedAllBody, {"model": "sparse", "inputs": "cat"}),
    "/v1/rerank": (RerankBody, {"model": "echo", "query": "cat", "documents": ["dog"]}),
    "/v2/rerank": (RerankBody, {"model": "echo", "query": "cat", "documents": ["dog"]}),
    "/v1/ranking": (
        RankingBody,
        {"model": "echo", "query": {"text": "cat"}, "passages": [{"text": "dog"}]},
    ),
    "/score": (ScoreBody, {"model": "echo", "text_1": "cat", "text_2": "cat"}),
    "/similarity": (
        SimilarityBody,
        {"model": "echo", "inputs": {"source_sentence": "cat", "sentences": ["cat"]}},
    ),
    "/v1/classify": (ClassifyBody, {"model": "echo", "input": "cat"}),
    "/predict": (PredictBody, {"model": "echo", "inputs": "cat"}),
    "/v1/moderations": (ModerationBody, {"model": "echo", "input": "cat"}),
    "/tokenize": (TokenizeBody, {"model": "echo", "prompt": "cat"}),
    "/detokenize": (DetokenizeBody, {"model": "echo", "tokens": [5]}),
    "/decode": (DecodeBody, {"model": "echo", "ids": [5]}),
}
TEI_ROUTES = {"/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/decode"}
WRONG_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 31, 1 << 70, 1e308, "", "x", "\0", "\ud800", "m" * 5000),
    *([], {}, [[]], [None], [True], [1.5], ["a", 1], [1, [1]], [-1], [1 << 70], [[1 << 40]]),
    *({"a": 1}, [{"text": 1}], [{"text": "a", "b": 1}], [[["a"]]], ["cat"] * 3, [""]),
)
WRONG_BODIES = (
    *(b"", b"null", b"[]", b'"x"', b"{", b"{}", b"\xff", b'{"model":"\xff"}', b"[" * 5000),
    *(b'{"a":' * 5000, b'{"model":"echo","model":1}', b'{"":1}', b"NaN", b'{"model":"echo"'),
)


def described(
    model: str, *, version: str = "1", seed: bytes = b"1", task: str = "embed"
) -> pb.ModelTextResponse:
    """A text model whose output is the token ids that it gets."""
    config = model_config_pb2.ModelConfig(name=model, backend="onnxruntime", max_batch_size=8)
    config.input.add(name="INPUT0", data_type=INT64_TYPE, dims=[-1])
    config.output.add(name="OUTPUT0", data_type=FP32_TYPE, dims=[-1])
    text: dict[str, Any] = {"task": task, "inputs": {"ids": "INPUT0"}, "max_tokens": 1024}
    if task == "embed":
        text["normalize"] = False
    files = {
        "tokenizer.json": text_models.tokenizer().to_str().encode(),
        "text.json": json.dumps(text).encode(),
    }
    return pb.ModelTextResponse(version=version, config=config, digest=seed, files=files)


@asynccontextmanager
async def text_site(**settings: Any) -> AsyncIterator[GatewaySite]:
    async with gateway_site(openai_api=True, **settings) as site:
        for model in ("echo", "hold", "fail"):
            site.scheduler.texts[model] = described(model)
        yield site


def body(model: str, texts: list[str] | str, **fields: Any) -> bytes:
    return json.dumps({"model": model, "input": texts, **fields}).encode()


async def held(site: GatewaySite, count: int) -> list[InferRequest]:
    return [await site.scheduler.next_held() for _ in range(count)]


def tokens_of(request: InferRequest) -> int:
    return kserve_pb2.ModelInferRequest.FromString(request.head).inputs[0].shape[1]


def respond(site: GatewaySite, request: InferRequest) -> None:
    site.scheduler.link.send(site.scheduler.echo(request))


async def test_a_bounded_number_of_rows_is_in_flight_and_the_longest_comes_first() -> None:
    texts = ["cat " * (index % 40 + 1) for index in range(WINDOW + 50)]
    async with text_site() as site:
        call = asyncio.ensure_future(ask(site, "POST", "/v1/embeddings", body("hold", texts)))
        requests = await held(site, WINDOW)
        lengths = [tokens_of(request) for request in requests]
        assert lengths == sorted(lengths, reverse=True)
        assert site.scheduler.held.empty()
        # The last ones are responded to first.
        for request in reversed(requests):
            respond(site, request)
        for request in await held(site, 50):
            respond(site, request)
        response = await call
    assert response.status == 200
    data = json.loads(response.body)["data"]
    assert [each["index"] for each in data] == list(range(len(texts)))
    assert [len(each["embedding"]) for each in data] == [index % 40 + 3 for index in range(306)]


async def test_the_first_error_is_the_calls_and_cancels_the_other_rows() -> None:
    async with text_site() as site:
        call = asyncio.ensure_future(
            ask(site, "POST", "/v1/embeddings", body("hold", ["cat", "dog", "rain"]))
        )
        first, *others = await held(site, 3)
        lost = ErrorStatus(Unavailable.code, "the executor was lost", True, retry_after_ms=2000)
        site.scheduler.link.send(InferResponse(first.id, error=lost))
        response = await call
        cancelled = {await asyncio.wait_for(site.scheduler.cancelled.get(), 5) for _ in others}
    assert response.status == 503
    assert json.loads(response.body)["error"] == {
        "message": "the executor was lost",
        "type": "server_error",
        "param": None,
        "code": "service_unavailable",
    }
    assert cancelled == {other.id for other in others}


async def test_rows_wait_for_others_of_their_call_in_a_full_queue() -> None:
    full = ErrorStatus(Unavailable.code, "the queue is full")
    async with text_site() as site:
        call = asyncio.ensure_future(
            ask(site, "POST", "/v1/embeddings", body("hold", ["cat", "the dog", "the dog sat"]))
        )
        longest, middle, shortest = await held(site, 3)
        for request in (middle, shortest):
            site.scheduler.link.send(InferResponse(request.id, error=full))
        respond(site, longest)
        (again,) = await held(site, 1)
        assert site.scheduler.held.empty()
        respond(site, again)
        # Nothing of the call is in the queue, so waiting would not help.
        (last,) = await held(site, 1)
        site.scheduler.link.send(InferResponse(last.id, error=full))
        assert (await call).status == 503


async def test_a_client_that_disconnects_cancels_all_rows() -> None:
    async with text_site() as site:
        _, writer = await connect(site)
        content = body("hold", ["cat", "dog", "rain"])
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        requests = await held(site, 3)
        writer.transport.abort()
        cancelled = {await asyncio.wait_for(site.scheduler.cancelled.get(), 5) for _ in requests}
        assert cancelled == {request.id for request in requests}
        pending = site.service._upstream.pending
        await until(lambda: not pending.requests)


async def test_a_model_that_fails_is_an_error_of_the_server() -> None:
    async with text_site() as site:
        response = await ask(site, "POST", "/v1/embeddings", body("fail", "cat"))
    assert response.status == 500
    assert json.loads(response.body)["error"]["message"] == "asked to fail"


async def test_rows_have_the_calls_priority_and_trace() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with text_site() as site:
        content = body("echo", ["cat", "dog"], priority=7)
        response = await ask(site, "POST", "/v1/embeddings", content, traceparent=trace)
        requests = site.scheduler.received
    assert response.status == 200
    assert {request.priority for request in requests} == {7}
    assert all(bytes.fromhex(trace[3:35]) in request.trace_context for request in requests)


async def test_a_call_is_repeated_if_its_version_was_replaced_meanwhile() -> None:
    async with text_site() as site:
        scheduler = site.scheduler
        call = asyncio.ensure_future(
            ask(site, "POST", "/v1/embeddings", body("hold", ["cat", "dog"]))
        )
        first, second = await held(site, 2)
        respond(site, first)
        scheduler.texts["hold"] = described("hold", version="2", seed=b"2")
        missing = ErrorStatus(5, "version 1 of model 'hold' is not found")
        scheduler.link.send(InferResponse(second.id, error=missing))
        again = await held(site, 2)
        heads = [kserve_pb2.ModelInferRequest.FromString(request.head) for request in again]
        assert [head.model_version for head in heads] == ["2", "2"]
        for request in again:
            respond(site, request)
        assert (await call).status == 200


async def test_the_files_of_a_model_are_sent_once() -> None:
    async with text_site() as site:
        for _ in range(3):
            await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
            await ask(site, "POST", "/v1/embeddings", body("echo", "dog"))
            site.scheduler.link.send(ModelsChanged(1))
        digests = [request.known_digest for request in site.scheduler.text_requests]
        rows = {request.text_digest for request in site.scheduler.received}
    assert digests == [b"", b"1", b"1"]
    assert rows == {b"1"}


async def test_a_version_with_the_files_of_another_gets_its_own_rows() -> None:
    async with text_site() as site:
        scheduler = site.scheduler
        for version in ("1", "2"):
            scheduler.texts["echo"] = described("echo", version=version)
            scheduler.link.send(ModelsChanged(1))
            response = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
            assert response.status == 200
            head = kserve_pb2.ModelInferRequest.FromString(scheduler.received[-1].head)
            assert head.model_version == version


async def test_bodies_that_are_wrong_are_refused_by_name() -> None:
    async with text_site() as site:
        for content, parameter, code in (
            (b"{", None, None),
            (b"[" * 100_000, None, None),
            (b'{"model": "echo"}', "input", "missing_required_parameter"),
            (b'{"model": "echo", "input": 1}', "input", "invalid_type"),
            (b'{"model": "echo", "input": []}', "input", "empty_array"),
            (b'{"model": "echo", "input": ["a", 1]}', "input", "invalid_type"),
            (b'{"model": "echo", "input": [[]]}', "input", None),
            (b'{"model": "echo", "input": [-1]}', "input", None),
            (b'{"model": "echo", "input": [123456789012345678901]}', "input", None),
            (b'{"model": "echo", "input": "a", "n": 2}', "n", "unknown_parameter"),
            (b'{"model": "echo", "input": "a", "priority": -1}', "priority", None),
            (b'{"model": "\xff", "input": "a"}', None, None),
            (body("echo", ["a"] * 2049), "input", "array_above_max_length"),
            (body("echo", "cat " * 20_000, n=2), "n", "unknown_parameter"),
            (body("echo", "cat " * 2000), "input", "context_length_exceeded"),
        ):
            response = await ask(site, "POST", "/v1/embeddings", content)
            assert response.status == 400, (content[:60], response.body)
            error = json.loads(response.body)["error"]
            assert (error["param"], error["code"]) == (parameter, code), error
        response = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
    assert response.status == 200


async def test_errors_have_the_form_of_their_api() -> None:
    async with text_site() as site:
        openai = await ask(site, "POST", "/openai/v1/embeddings", b"{}")
        tei = await ask(site, "POST", "/embed", b"{}")
        cohere = await ask(site, "POST", "/v2/rerank", b"{}")
        absolute = await ask(site, "POST", "http://x/v2/rerank?a=b", b"{}")
        kserve = await ask(site, "GET", "/v2/models/none")
    assert json.loads(openai.body)["error"]["param"] == "model"
    assert json.loads(tei.body)["error_type"] == "Validation"
    assert json.loads(cohere.body).keys() == json.loads(absolute.body).keys() == {"message"}
    assert isinstance(json.loads(kserve.body)["error"], str)


async def test_fields_without_effect_are_refused() -> None:
    messages = [{"role": "user", "content": "cat"}]
    async with text_site() as site:
        for path, fields, parameter in (
            ("/v1/embeddings", {"input": "a", "add_generation_prompt": True}, None),
            ("/v1/embeddings", {"input": "a", "chat_template_kwargs": {"b": 1}}, None),
            ("/v1/embeddings", {"messages": messages, "input_type": "query"}, None),
            ("/v1/embeddings", {"input": "a", "embed_dtype": "float16"}, None),
            ("/pooling", {"input": "a", "endianness": "big"}, None),
            ("/v1/embeddings", {"input": "a", "messages": messages}, "messages"),
            ("/tokenize", {"prompt": "a", "tools": [{"type": "function"}]}, None),
            ("/tokenize", {"prompt": "a", "messages": messages}, "messages"),
            ("/tokenize", {"prompt": "a", "prompt_name": "query"}, None),
            ("/tokenize", {"inputs": "a", "return_token_strs": True}, None),
        ):
            content = json.dumps({"model": "echo", **fields}).encode()
            response = await ask(site, "POST", path, content)
            assert response.status == 400, fields
            expected = parameter or [*fields][-1]
            assert json.loads(response.body)["error"]["param"] == expected


async def test_the_only_model_needs_no_name() -> None:
    async with gateway_site(openai_api=True) as site:
        site.scheduler.texts["echo"] = described("echo")
        embedded = await ask(site, "POST", "/v1/embeddings", b'{"input": "cat"}')
        as_tei = await ask(site, "POST", "/embed", b'{"inputs": "cat"}')
        as_cohere = await ask(site, "POST", "/v2/embed", b'{"texts": ["cat"]}')
        info = json.loads((await ask(site, "GET", "/info")).body)
    vector = json.loads(embedded.body)["data"][0]["embedding"]
    assert json.loads(embedded.body)["model"] == "echo"
    assert len(json.loads(as_tei.body)[0]) == len(vector)
    assert json.loads(as_cohere.body)["embeddings"]["float"] == [vector]
    assert info["model_type"] == {"embedding": {"pooling": "none"}}
    assert info["model_id"] == info["served_model_name"] == "echo"
    limits = {name: info[name] for name in info if name.startswith("max_")}
    assert limits == {
        "max_input_length": 1024,
        "max_concurrent_requests": 256,
        "max_batch_tokens": 8192,
        "max_batch_requests": 8,
        "max_client_batch_size": 2048,
    }
    assert (info["auto_truncate"], info["tokenization_workers"] > 0) == (False, True)


async def test_health_follows_the_mesh() -> None:
    async with text_site() as site:
        assert (await ask(site, "GET", "/health")).status == 200
        site.scheduler.ready = False
        response = await ask(site, "GET", "/health")
    assert (response.status, json.loads(response.body)["error_type"]) == (503, "Unhealthy")


async def test_a_body_that_is_too_large_is_refused_in_the_form_of_its_api() -> None:
    async with text_site(http_max_input_size=1000) as site:
        large = b" " * 1001
        openai = await ask(site, "POST", "/v1/embeddings", large)
        tei = await ask(site, "POST", "/embed", large)
        kserve = await ask(site, "POST", "/v2/models/echo/infer", large)
    assert (openai.status, tei.status, kserve.status) == (413, 413, 400)
    error = json.loads(openai.body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "content_too_large")
    assert "1000" in error["message"]
    assert json.loads(tei.body)["error_type"] == "Validation"
    assert isinstance(json.loads(kserve.body)["error"], str)


async def test_large_responses_are_compressed_for_those_who_accept_it() -> None:
    texts = ["cat " * 900] * 20
    async with text_site() as site:
        plain = await ask(site, "POST", "/v1/embeddings", body("echo", texts))
        accepted = {"Accept-Encoding": "gzip, deflate"}
        packed = await ask(site, "POST", "/v1/embeddings", body("echo", texts), **accepted)
        small = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"), **accepted)
    assert b"Content-Encoding: gzip" in packed.head
    assert json.loads(gzip.decompress(packed.body))["data"] == json.loads(plain.body)["data"]
    assert b"Content-Encoding" not in plain.head + small.head


async def test_lines_of_rows_in_the_access_log_name_the_route(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with text_site(access_log=str(log)) as site:
        await ask(site, "POST", "/openai/v1/embeddings?a=b", body("echo", ["cat", "dog"]))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["route"], line["model"]) for line in lines] == [
        ("/openai/v1/embeddings", "echo")
    ] * 2


async def test_metrics_name_operation_model_and_error() -> None:
    async with text_site() as site:
        await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
        await ask(site, "POST", "/v1/embeddings", body("none", "cat"))
        page = (await site.service._read_own_page()).decode()
    labels = 'gen_ai_operation_name="embeddings",gen_ai_provider_name="nereid"'
    duration = "gen_ai_server_request_duration_seconds_count"
    assert f'{duration}{{{labels},gen_ai_request_model="echo",error_type=""}} 1' in page
    failed = f'{labels},gen_ai_request_model="",error_type="ModelNotFound"'
    assert f"{duration}{{{failed}}} 1" in page
    usage = f'{labels},gen_ai_request_model="echo",gen_ai_token_type="input"'
    assert f"gen_ai_client_token_usage_sum{{{usage}}} 3" in page


async def test_without_the_flag_there_are_no_such_routes() -> None:
    async with gateway_site() as site:
        response = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
    assert response.status == 404


async def test_limits_and_restrictions_have_openais_form(tmp_path: Path) -> None:
    key = make_key()
    config = tmp_path / "auth.toml"
    limits = "requests_per_second = 0.001\nburst = 1\n"
    config.write_text(key_entry("once", key, "inference", more=limits))
    credentials = {"Authorization": f"Bearer {key}"}
    async with text_site(
        auth_config=str(config), http_restricted_api=("metadata:admin-key=secret",)
    ) as site:
        first = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"), **credentials)
        second = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"), **credentials)
        restricted = await ask(site, "GET", "/v1/models", b"", **credentials)
        anonymous = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
    assert first.status == 200
    for response, status, code in (
        (second, 429, "rate_limit_exceeded"),
        (restricted, 403, "insufficient_permissions"),
        (anonymous, 401, "invalid_api_key"),
    ):
        assert response.status == status
        assert response.content_type == "application/json"
        assert json.loads(response.body)["error"]["code"] == code
    assert b"Retry-After: " in second.head


@pytest.mark.parametrize(
    "flags",
    [
        ("inference,metadata:admin-key=secret",),
        ("metadata:admin-key=secret", "inference:other-key=hidden"),
    ],
)
async def test_restricted_apis_need_their_header(flags: tuple[str, ...]) -> None:
    right = {"admin-key": "secret", "other-key": "hidden"}
    async with text_site(http_restricted_api=flags) as site:
        for headers, permitted in (
            (right, True),
            ({}, False),
            (dict.fromkeys(right, "wrong"), False),
            ({"wrong-key": "secret"}, False),
            ({"admin-key": "hidden", "other-key": "secret"}, False),
        ):
            calls = (
                await ask(site, "GET", "/v1/models", b"", **headers),
                await ask(site, "GET", "/v1/models/echo", b"", **headers),
                await ask(site, "POST", "/v1/embeddings", body("echo", "cat"), **headers),
            )
            assert {call.status for call in calls} == {200 if permitted else 403}
        assert (await ask(site, "GET", "/v2/health/live")).status == 200


async def test_documents_whose_scores_round_to_one_are_ranked_by_their_logits() -> None:
    words = ["cat", "dog", "rain"]
    plain = text_models.tokenizer()
    plain.post_processor = None
    by_id = sorted(range(len(words)), key=lambda index: -plain.encode(words[index]).ids[0])
    assert by_id != [0, 1, 2]
    async with text_site() as site:
        # The last token's id is the logit.
        description = described("echo", task="rank")
        description.files["tokenizer.json"] = plain.to_str().encode()
        site.scheduler.texts["echo"] = description
        asked = {"model": "echo", "query": "cat", "documents": words}
        response = await ask(site, "POST", "/v1/rerank", json.dumps(asked).encode())
    results = json.loads(response.body)["results"]
    assert {result["relevance_score"] for result in results} == {1.0}
    assert [result["index"] for result in results] == by_id


async def test_a_query_counts_for_each_of_its_documents() -> None:
    asked = {"model": "echo", "query": "cat " * 16_384, "documents": ["dog"] * 1024}
    async with text_site() as site:
        site.scheduler.texts["echo"] = described("echo", task="rank")
        content = json.dumps({**asked, "truncate": True}).encode()
        response = await ask(site, "POST", "/v1/rerank", content)
    assert response.status == 400
    assert "67111936 characters together" in json.loads(response.body)["error"]["message"]


def bodies_with_wrong_values() -> list[tuple[str, bytes]]:
    """Bodies of all routes with each of their fields, in turn, a value of any kind."""
    bodies: list[tuple[str, bytes]] = []
    for path, (body_type, fields) in CALLS.items():
        for name in body_type.__struct_fields__:
            bodies += [
                (path, json.dumps({**fields, name: value}).encode()) for value in WRONG_VALUES
            ]
        bodies += [(path, content) for content in WRONG_BODIES]
    return bodies


def is_error(path: str, document: dict[str, Any]) -> bool:
    """Whether this is an error of the API that a route belongs to."""
    if path in TEI_ROUTES or "error_type" in document:
        # TEI's bodies are known by their fields on routes that it shares with other APIs.
        own = path in TEI_ROUTES or "rerank" in path or path == "/tokenize"
        return own and document.keys() == {"error", "error_type"}
    if path in {"/v2/embed", "/v2/rerank"}:
        return document.keys() == {"message"}
    error: dict[str, Any] = document["error"]
    return error.keys() == {"message", "type", "param", "code"}


async def test_values_of_any_kind_are_served_or_refused_in_the_apis_form() -> None:
    async with text_site() as site:
        site.scheduler.texts["sparse"] = described("sparse", task="embed_sparse")
        for path, content in bodies_with_wrong_values():
            response = await ask(site, "POST", path, content)
            found = path, content[:200], response.status, response.body[:300]
            assert response.status in {200, 400, 404, 422}, found
            if response.status != 200:
                assert is_error(path, json.loads(response.body)), found
        # It goes on.
        response = await ask(site, "POST", "/v1/embeddings", body("echo", "cat"))
        assert response.status == 200
