"""LiteLLM: embeddings, rerank and errors, which it maps to its own."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest
from site_of_environment import (
    CHAT,
    EMBEDDER,
    KEY,
    QUERY,
    RANKER,
    SCORES,
    TEXTS,
    URL,
    check_vectors,
)


def _options(model: str) -> dict[str, Any]:
    return {"model": f"openai/{model}", "api_base": URL, "api_key": KEY, "num_retries": 0}


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
def test_embeddings(encoding_format: str | None) -> None:
    more = {} if encoding_format is None else {"encoding_format": encoding_format}
    if encoding_format == "base64":
        response = litellm.embedding(input=TEXTS, **_options(EMBEDDER), **more)
        assert all(isinstance(each["embedding"], (str, list)) for each in response.data)
        return
    response = litellm.embedding(input=TEXTS, **_options(EMBEDDER), **more)
    check_vectors([each["embedding"] for each in response.data])
    assert response.usage.prompt_tokens > len(TEXTS)


def test_asynchronous_embeddings() -> None:
    response = asyncio.run(litellm.aembedding(input=TEXTS, **_options(EMBEDDER)))
    check_vectors([each["embedding"] for each in response.data])


@pytest.mark.parametrize("provider", ["cohere", "jina_ai", "hosted_vllm"])
def test_rerank(provider: str) -> None:
    root = URL.removesuffix("/v1")
    base = {"cohere": f"{root}/v2/rerank", "jina_ai": f"{root}/v1/rerank"}.get(provider, root)
    response = litellm.rerank(
        model=f"{provider}/{RANKER}",
        query=QUERY,
        documents=TEXTS,
        api_base=base,
        api_key=KEY,
    )
    scores = [each["relevance_score"] for each in response.results]
    assert scores == sorted(scores, reverse=True)
    for each in response.results:
        assert abs(each["relevance_score"] - SCORES[TEXTS[each["index"]]]) < 1e-5


def test_errors() -> None:
    with pytest.raises(litellm.BadRequestError, match="too many"):
        litellm.embedding(input=["cat " * 100], **_options(EMBEDDER))
    with pytest.raises(litellm.NotFoundError):
        litellm.embedding(input=["cat"], **_options("nothing"))
    with pytest.raises(litellm.AuthenticationError):
        litellm.embedding(input=["cat"], **{**_options(EMBEDDER), "api_key": "wrong"})


@pytest.mark.parametrize("stream", [False, True])
def test_chat(stream: bool) -> None:
    messages = [{"role": "user", "content": "hello"}]
    response = litellm.completion(messages=messages, max_tokens=8, stream=stream, **_options(CHAT))
    if stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in response)
    else:
        assert response.choices[0].message.content
        assert response.usage.completion_tokens > 0
