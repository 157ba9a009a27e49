"""LangChain's standard suites, of langchain-tests, for its own clients of OpenAI."""

from __future__ import annotations

from typing import Any

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


class _OpenAI:
    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return PARAMETERS


class TestEmbeddingsUnit(_OpenAI, EmbeddingsUnitTests):
    pass


class TestEmbeddings(_OpenAI, EmbeddingsIntegrationTests):
    pass


def test_vectors() -> None:
    check_vectors(OpenAIEmbeddings(**PARAMETERS).embed_documents(TEXTS))


class TestChat(ChatModelIntegrationTests):
    """The model says again what it is told, so what a language model must choose is left out."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # For other URLs than OpenAI's, it asks for the usage of streams only when told to.
        asked = {"max_tokens": 32, "stream_usage": True}
        return {"model": CHAT, "base_url": URL, "api_key": KEY, **asked}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False
