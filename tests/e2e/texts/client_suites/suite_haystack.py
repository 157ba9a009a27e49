"""Haystack: embedders of texts and documents, alone and in a pipeline."""

from __future__ import annotations

from haystack import Document, Pipeline
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from site_of_environment import EMBEDDER, KEY, TEXTS, URL, check_vectors

SECRET = Secret.from_token(KEY)


def _documents() -> list[Document]:
    embedder = OpenAIDocumentEmbedder(SECRET, EMBEDDER, api_base_url=URL, progress_bar=False)
    found: list[Document] = embedder.run([Document(content=text) for text in TEXTS])["documents"]
    return found


def _text_embedder() -> OpenAITextEmbedder:
    return OpenAITextEmbedder(SECRET, EMBEDDER, api_base_url=URL)


def test_documents() -> None:
    check_vectors([document.embedding for document in _documents()])


def test_a_text() -> None:
    response = _text_embedder().run(TEXTS[0])
    check_vectors([response["embedding"]], TEXTS[:1])
    assert response["meta"]["usage"]["prompt_tokens"] > 0


def test_a_pipeline_of_retrieval() -> None:
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(_documents())
    pipeline = Pipeline()
    pipeline.add_component("embedder", _text_embedder())
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    for text in TEXTS[:3]:
        (found,) = pipeline.run({"embedder": {"text": text}})["retriever"]["documents"]
        assert found.content == text
