"""LangChain's standard suites, of langchain-tests, for its own clients of OpenAI."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from site_of_environment import CHAT, EMBEDDER, KEY, TEXTS, URL, check_vectors

PARAMETERS: dict[str, Any] = {
    "model": EMBEDDER,
    "base_url": URL,
    "api_key": KEY,
    # It sends texts, not tokens of OpenAI's vocabulary.
    "check_embedding_ctx_length": False,
}


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return PARAMETERS


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return PARAMETERS


def test_vectors() -> None:
    check_vectors(OpenAIEmbeddings(**PARAMETERS).embed_documents(TEXTS))


@pytest.mark.skipif(not CHAT, reason="the mesh has no model with chat")
class TestChat(ChatModelIntegrationTests):
    """Without what only a large model can do: its tests of tools and of images."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": CHAT, "base_url": URL, "api_key": KEY, "max_tokens": 32}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False
