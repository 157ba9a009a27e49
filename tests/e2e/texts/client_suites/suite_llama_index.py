"""LlamaIndex: its OpenAI-like embeddings alone, and under an index."""

from __future__ import annotations

import asyncio

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from site_of_environment import EMBEDDER, KEY, TEXTS, URL, check_vectors


def _embedding() -> OpenAILikeEmbedding:
    return OpenAILikeEmbedding(
        model_name=EMBEDDER, api_base=URL, api_key=KEY, embed_batch_size=4, max_retries=0
    )


def test_batches_of_texts() -> None:
    check_vectors(_embedding().get_text_embedding_batch(TEXTS))


def test_one_text_and_a_query() -> None:
    embedding = _embedding()
    check_vectors([embedding.get_text_embedding(TEXTS[0])], TEXTS[:1])
    check_vectors([embedding.get_query_embedding(TEXTS[1])], TEXTS[1:2])


def test_asynchronous_batches() -> None:
    check_vectors(asyncio.run(_embedding().aget_text_embedding_batch(TEXTS)))


def test_an_index_finds_each_text_by_itself() -> None:
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in TEXTS],
        embed_model=_embedding(),
        transformations=[SentenceSplitter(chunk_size=512)],
    )
    retriever = index.as_retriever(similarity_top_k=1)
    for text in TEXTS[:3]:
        (found,) = retriever.retrieve(text)
        assert found.node.get_content() == text
        assert abs(found.score - 1) < 1e-4
