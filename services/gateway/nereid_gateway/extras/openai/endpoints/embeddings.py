"""Vectors of texts: OpenAI's embeddings, vLLM's pooling, TEI's embed and embed_all."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import orjson

from nereid.text.mapping import CLASSIFY, EMBED, RANK
from nereid_gateway.extras.openai.bodies import texts_of
from nereid_gateway.extras.openai.calls import TextCall, TruncationFields
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts import outputs
from nereid_gateway.extras.openai.vectors_json import as_base64, encode_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextServices
    from nereid_gateway.extras.openai.texts.outputs import Vector
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

# A text, texts, tokens, or lists of tokens.
Input = str | list[str | int | list[int]]

# Vectors of tokens in one response, which may have 90 MB of JSON.
_MAX_TOKEN_VECTORS: Final = 8192
# Names of Cohere, NVIDIA and Jina for the prompts that sentence-transformers calls by the key.
_INPUT_TYPES: Final = {
    "query": "query",
    "search_query": "query",
    "passage": "document",
    "document": "document",
    "search_document": "document",
}
_PROMPT_ALIASES: Final = {"document": ("document", "passage")}


class PromptFields(TruncationFields, kw_only=True):
    """Fields that choose the text which is put in front of each text."""

    prompt_name: str | None = None
    input_type: str | None = None

    def prompt(self, model: TextModel) -> str:
        """Return the text to put in front; raise InvalidParameter for an unknown name."""
        mapping = model.mapping
        prompts = mapping.prompts
        if self.prompt_name is not None:
            if self.prompt_name not in prompts:
                raise _unknown_prompt("prompt_name", self.prompt_name, model)
            return prompts[self.prompt_name]
        if self.input_type is not None:
            kind = _INPUT_TYPES.get(self.input_type)
            names = (self.input_type, *_PROMPT_ALIASES.get(kind or "", (kind or "",)))
            for name in names:
                if name in prompts:
                    return prompts[name]
            if kind is None:
                raise _unknown_prompt("input_type", self.input_type, model)
            # The model makes no difference between them.
            return ""
        return prompts.get(mapping.default_prompt, "")


class EmbeddingsBody(PromptFields, kw_only=True):
    """Body of /v1/embeddings."""

    model: str
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    # None: as the model's files say.
    normalize: bool | None = None
    add_special_tokens: bool = True
    priority: int = 0
    # Accepted without effect.
    user: str | None = None


class PoolingBody(EmbeddingsBody, kw_only=True):
    """Body of /v1/pooling."""

    task: Literal["embed", "token_embed", "classify"] | None = None


class EmbedBody(PromptFields, kw_only=True):
    """Body of TEI's /embed. TEI itself serves one model, so `model` may be left out."""

    inputs: Input
    model: str | None = None
    normalize: bool | None = True
    dimensions: int | None = None


class EmbedAllBody(PromptFields, kw_only=True):
    """Body of TEI's /embed_all."""

    inputs: Input
    model: str | None = None


class OpenAiEmbeddings:
    """Handlers of the routes that respond with vectors."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._outputs = services.outputs

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with a vector for each text, as OpenAI does."""
        await self._serve(call, "embeddings", self._create)

    async def pool(self, call: HttpCall, _route: Route) -> None:
        """Respond with the model's pooled output for each text, as vLLM does."""
        await self._serve(call, "embeddings", self._pool)

    async def embed(self, call: HttpCall, _route: Route) -> None:
        """Respond with a list of vectors, as TEI does."""
        await self._serve(call, "embeddings", self._embed)

    async def embed_all(self, call: HttpCall, _route: Route) -> None:
        """Respond with the vectors of all tokens, as TEI does."""
        await self._serve(call, "embeddings", self._embed_all)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbeddingsBody)
        call.priority = priority_of(body.priority)

        async def work(model: TextModel) -> list[Vector]:
            rows = await _rows(call, model, body)
            return await call.infer(rows, self._vector_of(model, body))

        vectors = await call.with_model(body.model, (EMBED,), work)
        form = as_base64 if body.encoding_format == "base64" else _as_is

        def document(index: int, vector: Vector) -> dict[str, Any]:
            return {"object": "embedding", "index": index, "embedding": form(vector)}

        parts = await encode_list(vectors, document)
        tail = {"model": body.model, "usage": usage(call.tokens)}
        return (b'{"object":"list","data":', *parts, b",", orjson.dumps(tail)[1:])

    async def _pool(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(PoolingBody)
        call.priority = priority_of(body.priority)

        async def work(model: TextModel) -> list[Vector]:
            rows = await _rows(call, model, body)
            if body.task == "token_embed":
                _check_token_count(rows)
                return await call.infer(rows, partial(self._token_vectors, model))
            if EMBED in model.mapping.tasks and body.task != "classify":
                return await call.infer(rows, self._vector_of(model, body))
            if body.task == "embed":
                raise InvalidParameter("task", f"The model '{model.name}' does not embed.")
            return await call.infer(rows, partial(self._scores, model))

        tasks = (EMBED,) if body.task == "token_embed" else (EMBED, CLASSIFY, RANK)
        vectors = await call.with_model(body.model, tasks, work)
        form = as_base64 if body.encoding_format == "base64" else _as_is

        def document(index: int, vector: Vector) -> dict[str, Any]:
            return {"object": "pooling", "index": index, "data": form(vector)}

        parts = await encode_list(vectors, document)
        head = orjson.dumps(
            {"id": f"pool-{uuid4().hex}", "object": "list", "created": int(time.time())}
        )
        tail = {"model": body.model, "usage": usage(call.tokens)}
        return (head[:-1], b',"data":', *parts, b",", orjson.dumps(tail)[1:])

    async def _embed(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbedBody)

        async def work(model: TextModel) -> list[Vector]:
            texts = prompted(texts_of(body.inputs, "inputs"), body.prompt(model))
            rows = await call.rows(model, texts, body.limit(model, "inputs"))
            dimensions = dimensions_of(model, body.dimensions)
            normalizes = body.normalize is not False
            return await call.infer(rows, partial(self._vector, model, dimensions, normalizes))

        vectors = await call.with_model(body.model, (EMBED,), work)
        return await encode_list(vectors, lambda _index, vector: vector)

    async def _embed_all(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbedAllBody)

        async def work(model: TextModel) -> list[Vector]:
            texts = prompted(texts_of(body.inputs, "inputs"), body.prompt(model))
            rows = await call.rows(model, texts, body.limit(model, "inputs"))
            _check_token_count(rows)
            return await call.infer(rows, partial(self._token_vectors, model))

        vectors = await call.with_model(body.model, (EMBED,), work)
        return await encode_list(vectors, lambda _index, vector: vector)

    def _vector_of(
        self, model: TextModel, body: EmbeddingsBody
    ) -> Callable[[InferResponse, Row], Vector]:
        normalizes = model.mapping.normalizes if body.normalize is None else body.normalize
        return partial(self._vector, model, dimensions_of(model, body.dimensions), normalizes)

    def _vector(
        self, model: TextModel, dimensions: int, normalizes: bool, response: InferResponse, row: Row
    ) -> Vector:
        mapping = model.mapping
        array = self._outputs.read(response, mapping.output)
        vector = model.layers.apply(outputs.pooled_vector(array, mapping, row))
        if dimensions:
            if dimensions > len(vector):
                raise InvalidParameter(
                    "dimensions",
                    f"The model '{model.name}' has vectors of {len(vector)} dimensions, fewer than"
                    f" {dimensions}.",
                )
            vector = vector[:dimensions]
        return outputs.normalized(vector) if normalizes else vector

    def _token_vectors(self, model: TextModel, response: InferResponse, row: Row) -> Vector:
        mapping = model.mapping
        if not mapping.pooling:
            raise InvalidParameter(
                "model", f"The model '{model.name}' has no vectors of single tokens."
            )
        array = self._outputs.read(response, mapping.output)
        return outputs.token_vectors(array, mapping, row)

    def _scores(self, model: TextModel, response: InferResponse, _row: Row) -> Vector:
        array = self._outputs.read(response, model.mapping.output)
        return outputs.activated(array, model.mapping.activation).astype("<f4")


async def _rows(call: TextCall, model: TextModel, body: EmbeddingsBody) -> list[Row]:
    texts = prompted(texts_of(body.input), body.prompt(model))
    limit = body.limit(model, "input")
    return await call.rows(model, texts, limit, special=body.add_special_tokens)


def _check_token_count(rows: list[Row]) -> None:
    count = sum(row.tokens for row in rows)
    if count > _MAX_TOKEN_VECTORS:
        raise InvalidParameter(
            "input",
            f"The response would have vectors of {count} tokens, more than {_MAX_TOKEN_VECTORS};"
            " send several requests.",
        )


def prompted(texts: list[Any], prompt: str) -> list[Any]:
    """Return texts with a prompt in front. Lists of tokens have none."""
    if not prompt or not isinstance(texts[0], str):
        return texts
    return [prompt + text for text in texts]


def dimensions_of(model: TextModel, asked: int | None) -> int:
    """Return the length to which vectors are cut, or 0; raise InvalidParameter."""
    if asked is None:
        return 0
    mapping = model.mapping
    if not mapping.matryoshka:
        raise InvalidParameter(
            "dimensions", f"The model '{model.name}' does not support 'dimensions'."
        )
    if asked < 1 or (mapping.dimensions and asked not in mapping.dimensions):
        known = ", ".join(map(str, mapping.dimensions)) or "1 and more"
        raise InvalidParameter(
            "dimensions", f"The model '{model.name}' supports these dimensions: {known}."
        )
    return asked


def priority_of(asked: int) -> int:
    """Return a body's priority; raise InvalidParameter if it is negative."""
    if not 0 <= asked < 1 << 32:
        raise InvalidParameter("priority", "'priority' is from 0 to 4294967295.")
    return asked


def usage(tokens: int) -> dict[str, int]:
    """Return the usage of a call without completion."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _as_is(vector: Vector) -> Vector:
    return vector


def _unknown_prompt(parameter: str, name: str, model: TextModel) -> InvalidParameter:
    known = ", ".join(f"'{each}'" for each in sorted(model.mapping.prompts)) or "none"
    return InvalidParameter(
        parameter, f"The model '{model.name}' has no prompt '{name[:100]}'. It has: {known}."
    )
