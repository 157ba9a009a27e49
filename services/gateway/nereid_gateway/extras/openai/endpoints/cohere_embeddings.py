"""Vectors of texts as Cohere's second version has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import numpy as np
import orjson

from nereid.text.mapping import EMBED
from nereid_gateway.extras.openai.bodies import texts_of
from nereid_gateway.extras.openai.endpoints.embeddings import dimensions_of, read_vector
from nereid_gateway.extras.openai.endpoints.text_fields import PromptFields, priority_of, prompted
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.vectors import as_base64, encode_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.outputs import Vector
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_BYTE_BITS: Final = 8


class CohereEmbedBody(PromptFields, kw_only=True):
    """Body of /v2/embed."""

    texts: list[str]
    model: str | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None
    output_dimension: int | None = None
    # Cohere's limit for each text, which is truncated.
    max_tokens: int | None = None
    priority: int = 0


class OpenAiCohereEmbeddings:
    """Handler of Cohere's route of embeddings."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._outputs = services.outputs

    async def create(self, call: HttpCall, _route: Route) -> None:
        """Respond with the vectors by type, in the order of the texts."""
        await self._serve(call, "embeddings", self._create)

    async def _create(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(CohereEmbedBody)
        call.priority = priority_of(body.priority)
        if body.truncate is None:
            body.truncate = "END"
        most = body.max_tokens
        if most is not None and most < 1:
            raise InvalidParameter("max_tokens", "'max_tokens' must be at least 1.")

        async def work(model: TextModel) -> list[Vector]:
            texts = prompted(texts_of(body.texts, "texts"), body.prompt(model))
            limit = body.limit(model, "texts")
            if most is not None:
                limit = limit._replace(max_tokens=min(most, limit.max_tokens))
            rows = await call.rows(model, texts, limit)
            dimensions = dimensions_of(model, body.output_dimension)
            normalizes = model.mapping.normalizes
            read = partial(read_vector, self._outputs, model, dimensions, normalizes)
            return await call.infer(rows, read)

        vectors = await call.with_model(body.model, (EMBED,), work)
        types = dict.fromkeys(body.embedding_types or ("float",))
        if {"binary", "ubinary"} & types.keys() and vectors[0].size % _BYTE_BITS:
            raise InvalidParameter(
                "embedding_types",
                f"Vectors of {vectors[0].size} numbers have no binary form: it needs a multiple of"
                f" {_BYTE_BITS}.",
            )
        head = {"id": uuid4().hex, "response_type": "embeddings_by_type"}
        parts = [orjson.dumps(head)[:-1], b',"embeddings":']
        lead = b"{"
        for name in types:
            parts += [lead, orjson.dumps(name), b":"]
            parts += await encode_list(vectors, _FORMS[name])
            lead = b","
        tokens = {"input_tokens": call.tokens}
        meta = {"api_version": {"version": "2"}, "billed_units": tokens, "tokens": tokens}
        tail = {"texts": body.texts, "meta": meta}
        return (*parts, b"},", orjson.dumps(tail)[1:])


def _as_is(_index: int, vector: Vector) -> Vector:
    return vector


def _base64(_index: int, vector: Vector) -> str:
    return as_base64(vector)


def _signs(_index: int, vector: Vector) -> Any:
    """Return a bit for each number, set for those above 0."""
    return np.packbits(vector > 0)


def _signed_signs(index: int, vector: Vector) -> Any:
    return (_signs(index, vector).astype(np.int16) - (1 << 7)).astype(np.int8)


_FORMS: Final[dict[str, Callable[[int, Vector], Any]]] = {
    "float": _as_is,
    "base64": _base64,
    "binary": _signed_signs,
    "ubinary": _signs,
}
