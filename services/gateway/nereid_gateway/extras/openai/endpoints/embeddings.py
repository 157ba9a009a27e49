"""Vectors of texts: OpenAI's embeddings, vLLM's pooling, TEI's embed, embed_all, embed_sparse."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import orjson

from nereid.text.mapping import CLASSIFY, EMBED, EMBED_SPARSE, RANK
from nereid_gateway.extras.openai.bodies import texts_of
from nereid_gateway.extras.openai.endpoints.text_fields import (
    Input,
    InputFields,
    PromptFields,
    priority_of,
    prompted,
    usage,
)
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts import outputs
from nereid_gateway.extras.openai.texts.rows import MAX_IN_FLIGHT
from nereid_gateway.extras.openai.vectors import (
    Endianness,
    NumberType,
    as_base64,
    as_bytes,
    encode_list,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.outputs import OutputReader, Vector
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

# Vectors of tokens in one response, which may have 90 MB of JSON.
_MAX_TOKEN_VECTORS: Final = 8192
# Rows of a call in flight whose outputs are logits for each token, of megabytes each.
_LOGITS_IN_FLIGHT: Final = 8
# Bytes of a line of a response's head, which some clients limit to 64 KiB.
_MAX_METADATA_BYTES: Final = 60_000
_OCTETS: Final = b"application/octet-stream"


class EmbeddingsBody(InputFields, kw_only=True):
    """Body of /v1/embeddings."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    # Encodings in bytes have these.
    embed_dtype: NumberType = "float32"
    endianness: Endianness = "native"
    dimensions: int | None = None
    # None: as the model's files say. vLLM's old and new names.
    normalize: bool | None = None
    use_activation: bool | None = None

    def check(self) -> None:
        """Raise InvalidParameter for a form of bytes that no bytes have."""
        if self.encoding_format in {None, "float"}:
            for name in ("embed_dtype", "endianness"):
                if getattr(self, name) not in {"float32", "native"}:
                    raise InvalidParameter(name, f"'{name}' needs an 'encoding_format' of bytes.")

    def normalizes(self, model: TextModel) -> bool:
        """Return whether vectors get length 1."""
        asked = self.normalize if self.use_activation is None else self.use_activation
        return model.mapping.normalizes if asked is None else asked


class PoolingBody(EmbeddingsBody, kw_only=True):
    """Body of /v1/pooling."""

    task: Literal["embed", "token_embed", "classify"] | None = None

    def kind(self, model: TextModel) -> str:
        """Return the task, which the model has; raise InvalidParameter."""
        tasks = model.mapping.tasks
        task = self.task or ("embed" if EMBED in tasks else "classify")
        if tasks.isdisjoint((CLASSIFY, RANK) if task == "classify" else (EMBED,)):
            raise InvalidParameter(
                "task", f"Unsupported task: '{task}'. The model '{model.name}' does not have it."
            )
        return task


class EmbedBody(PromptFields, kw_only=True):
    """Body of TEI's /embed. TEI itself serves one model, so `model` may be left out."""

    inputs: Input
    model: str | None = None
    normalize: bool | None = True
    dimensions: int | None = None


class EmbedAllBody(PromptFields, kw_only=True):
    """Body of TEI's /embed_all and /embed_sparse."""

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

    async def embed_sparse(self, call: HttpCall, _route: Route) -> None:
        """Respond with the weights of the vocabulary's tokens, as TEI does."""
        await self._serve(call, "embeddings", self._embed_sparse)

    async def embed_all(self, call: HttpCall, _route: Route) -> None:
        """Respond with the vectors of all tokens, as TEI does."""
        await self._serve(call, "embeddings", self._embed_all)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbeddingsBody)
        body.check()
        call.priority = priority_of(body.priority)

        async def work(model: TextModel) -> list[Vector]:
            rows = await body.rows(call, model)
            return await call.infer(rows, self._vector_of(model, body))

        vectors = await call.with_model(body.model, (EMBED,), work)
        return await _encoded(call, body, vectors, "embd", "embedding", "embedding")

    async def _pool(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(PoolingBody)
        body.check()
        call.priority = priority_of(body.priority)

        async def work(model: TextModel) -> list[Vector]:
            task = body.kind(model)
            rows = await body.rows(call, model)
            if task == "token_embed":
                _check_token_count(rows)
                return await call.infer(rows, partial(self._token_vectors, model))
            if task == "embed":
                return await call.infer(rows, self._vector_of(model, body))
            return await call.infer(rows, partial(self._scores, model, body))

        vectors = await call.with_model(body.model, (EMBED, CLASSIFY, RANK), work)
        return await _encoded(call, body, vectors, "pool", "pooling", "data")

    async def _embed(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbedBody)

        async def work(model: TextModel) -> list[Vector]:
            texts = prompted(texts_of(body.inputs, "inputs"), body.prompt(model))
            rows = await call.rows(model, texts, body.limit(model, "inputs"))
            dimensions = dimensions_of(model, body.dimensions)
            normalizes = body.normalize is not False
            read = partial(read_vector, self._outputs, model, dimensions, normalizes)
            return await call.infer(rows, read)

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

    async def _embed_sparse(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(EmbedAllBody)

        async def work(model: TextModel) -> list[bytes]:
            texts = prompted(texts_of(body.inputs, "inputs"), body.prompt(model))
            rows = await call.rows(model, texts, body.limit(model, "inputs"))
            most = _LOGITS_IN_FLIGHT if model.mapping.pooling else MAX_IN_FLIGHT
            return await call.infer(rows, partial(self._weights, model), most)

        documents = await call.with_model(body.model, (EMBED_SPARSE,), work)
        return (b"[", b",".join(documents), b"]")

    def _vector_of(
        self, model: TextModel, body: EmbeddingsBody
    ) -> Callable[[InferResponse, Row], Vector]:
        dimensions = dimensions_of(model, body.dimensions)
        return partial(read_vector, self._outputs, model, dimensions, body.normalizes(model))

    def _weights(self, model: TextModel, response: InferResponse, row: Row) -> bytes:
        """Return JSON: a thread reads large outputs, and so it encodes them as well."""
        array = self._outputs.read(response, model.mapping.output)
        ids, weights = outputs.sparse_vector(array, model.mapping, row)
        pairs = zip(ids.tolist(), weights.tolist(), strict=True)
        return orjson.dumps([{"index": token, "value": weight} for token, weight in pairs])

    def _token_vectors(self, model: TextModel, response: InferResponse, row: Row) -> Vector:
        mapping = model.mapping
        if not mapping.pooling:
            raise InvalidParameter(
                "model", f"The model '{model.name}' has no vectors of single tokens."
            )
        array = self._outputs.read(response, mapping.output)
        return outputs.token_vectors(array, mapping, row)

    def _scores(
        self, model: TextModel, body: PoolingBody, response: InferResponse, _row: Row
    ) -> Vector:
        array = self._outputs.read(response, model.mapping.output)
        activation = "none" if body.use_activation is False else model.mapping.activation
        return outputs.activated(array, activation).astype("<f4")


def read_vector(  # noqa: PLR0913, PLR0917 - all but two are bound
    reader: OutputReader,
    model: TextModel,
    dimensions: int,
    normalizes: bool,
    response: InferResponse,
    row: Row,
) -> Vector:
    """Return the vector of a row's text. dimensions: 0 for all. Raises InvalidParameter."""
    array = reader.read(response, model.mapping.output)
    vector = model.layers.apply(outputs.pooled_vector(array, model.mapping, row))
    if dimensions:
        if dimensions > len(vector):
            raise InvalidParameter(
                "dimensions",
                f"The model '{model.name}' has vectors of {len(vector)} dimensions, fewer than"
                f" {dimensions}.",
            )
        vector = vector[:dimensions]
    return outputs.normalized(vector) if normalizes else vector


async def _encoded(  # noqa: PLR0913, PLR0917 - two routes differ in their names
    call: TextCall,
    body: EmbeddingsBody,
    vectors: Sequence[Vector],
    prefix: str,
    kind: str,
    field: str,
) -> Sequence[bytes]:
    """Return the body of a response in the encoding that is asked for.

    prefix: of its id. kind, field: of each vector's object and of its numbers.
    """
    head = {"id": f"{prefix}-{uuid4().hex}", "object": "list", "created": int(time.time())}
    tail = {"model": body.model or call.model_name, "usage": usage(call.tokens)}
    number_type, endianness = body.embed_dtype, body.endianness
    match body.encoding_format:
        case "bytes" | "bytes_only" as encoding:
            call.content_type = _OCTETS
            contents = [as_bytes(vector, number_type, endianness) for vector in vectors]
            if encoding == "bytes":
                data = _places(contents, vectors, body)
                call.header_lines = _metadata_line({**head, "data": data, **tail})
            return contents
        case "base64":

            def form(vector: Vector) -> Any:
                return as_base64(vector, number_type, endianness)

        case _:
            form = _as_is

    def document(index: int, vector: Vector) -> dict[str, Any]:
        return {"object": kind, "index": index, field: form(vector)}

    parts = await encode_list(vectors, document)
    return (orjson.dumps(head)[:-1], b',"data":', *parts, b",", orjson.dumps(tail)[1:])


def _places(
    contents: Sequence[bytes], vectors: Sequence[Vector], body: EmbeddingsBody
) -> list[dict[str, Any]]:
    """Return where each vector lies in a body of bytes."""
    places = []
    end = 0
    for index, (content, vector) in enumerate(zip(contents, vectors, strict=True)):
        begin, end = end, end + len(content)
        places.append(
            {
                "index": index,
                "embed_dtype": body.embed_dtype,
                "endianness": body.endianness,
                "start": begin,
                "end": end,
                "shape": vector.shape,
            }
        )
    return places


def _metadata_line(document: dict[str, Any]) -> bytes:
    # ASCII, as orjson's JSON is not.
    content = json.dumps(document, separators=(",", ":"))
    if len(content) > _MAX_METADATA_BYTES:
        raise InvalidParameter(
            "encoding_format",
            "The places of so many vectors do not fit into the head of the response. Use"
            " 'bytes_only', or send several requests.",
        )
    return b"metadata: %b\r\n" % content.encode()


def _check_token_count(rows: list[Row]) -> None:
    count = sum(row.tokens for row in rows)
    if count > _MAX_TOKEN_VECTORS:
        raise InvalidParameter(
            "input",
            f"The response would have vectors of {count} tokens, more than {_MAX_TOKEN_VECTORS};"
            " send several requests.",
        )


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


def _as_is(vector: Vector) -> Vector:
    return vector
