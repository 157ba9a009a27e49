"""Scores of pairs of texts.

Rerank of Cohere, Jina, vLLM and TEI, NIM's ranking, vLLM's score, TEI's similarity. A ranker scores
each pair. With an embedder, the score is the cosine of two vectors.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec
import orjson

from nereid.core.errors import Internal
from nereid.text.mapping import EMBED, RANK
from nereid_gateway.core.routes import path_of
from nereid_gateway.extras.openai.bodies import missing
from nereid_gateway.extras.openai.calls import TruncationFields, split_jobs
from nereid_gateway.extras.openai.endpoints.text_fields import PromptFields, priority_of, usage
from nereid_gateway.extras.openai.errors import InvalidParameter, tei_error
from nereid_gateway.extras.openai.texts import outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.outputs import Vector
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_MAX_PAIRS: Final = 2048
_QUERY: Final = ("query",)
_DOCUMENT: Final = ("document", "passage")
_SCORE_NAMES: Final = (
    ("queries", "text_1", "data_1"),
    ("documents", "items", "text_2", "data_2"),
)


class Document(msgspec.Struct):
    """Document with fields. The text alone is ranked."""

    text: str


class RerankBody(TruncationFields, kw_only=True):
    """Body of the routes of rerank, which all APIs share. TEI's bodies have `texts`."""

    query: str
    model: str | None = None
    documents: str | list[str | Document] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    # Cohere's limit for each document, which is truncated.
    max_tokens_per_doc: int | None = None
    # Jina's.
    truncation: bool | None = None
    priority: int = 0
    # TEI's.
    texts: list[str] | None = None
    raw_scores: bool = False
    return_text: bool = False
    # vLLM's opposites of raw_scores, by the new and the old name.
    use_activation: bool | None = None
    activation: bool | None = None
    # Accepted without effect.
    user: str | None = None


class RankingBody(TruncationFields, kw_only=True):
    """Body of NIM's /v1/ranking."""

    model: str
    query: Document
    passages: list[Document]
    priority: int = 0


class ScoreBody(TruncationFields, kw_only=True):
    """Body of vLLM's /v1/score, by all names that it has had."""

    model: str | None = None
    queries: str | list[str] | None = None
    text_1: str | list[str] | None = None
    data_1: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    text_2: str | list[str] | None = None
    data_2: str | list[str] | None = None
    raw_scores: bool = False
    use_activation: bool | None = None
    activation: bool | None = None
    priority: int = 0
    user: str | None = None


class SimilarityInputs(msgspec.Struct, forbid_unknown_fields=True):
    """Texts of TEI's /similarity."""

    source_sentence: str
    sentences: list[str]


class SimilarityBody(PromptFields, kw_only=True):
    """Body of TEI's /similarity."""

    inputs: SimilarityInputs
    model: str | None = None
    parameters: PromptFields | None = None


def _ranking_prompts(model: TextModel) -> tuple[str, str]:
    prompts = model.mapping.prompts
    query = next((prompts[name] for name in _QUERY if name in prompts), "")
    document = next((prompts[name] for name in _DOCUMENT if name in prompts), "")
    return query, document


class Score(NamedTuple):
    """Score of a pair. evidence: differs where scores round to the same number, such as 1."""

    value: float
    evidence: float


class OpenAiRanking:
    """Handlers of the routes that respond with scores of pairs."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._outputs = services.outputs

    async def rerank(self, call: HttpCall, _route: Route) -> None:
        """Respond with documents in the order of their relevance for a query."""
        await self._serve(call, "rerank", self._rerank)

    async def ranking(self, call: HttpCall, _route: Route) -> None:
        """Respond with passages in the order of their logits for a query."""
        await self._serve(call, "rerank", self._ranking)

    async def score(self, call: HttpCall, _route: Route) -> None:
        """Respond with a score for each pair."""
        await self._serve(call, "score", self._score)

    async def similarity(self, call: HttpCall, _route: Route) -> None:
        """Respond with the similarities of sentences to one."""
        await self._serve(call, "similarity", self._similarity)

    async def _rerank(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(RerankBody)
        call.priority = priority_of(body.priority)
        parameter = "documents" if body.texts is None else "texts"
        if body.texts is not None:
            call.call.encode_error = tei_error
        texts = _documents(body)
        if body.top_n is not None and body.top_n < 0:
            raise InvalidParameter("top_n", "'top_n' must be at least 1; 0 stands for all.")
        is_cohere = path_of(call.call.target).endswith("/v2/rerank")
        if body.truncate is None and (body.truncation or is_cohere):
            body.truncate = True
        pairs = [(body.query, text) for text in texts]
        scores = await self._scores(
            call,
            body.model,
            pairs,
            body,
            parameter,
            raw=_is_raw(body),
            document_tokens=body.max_tokens_per_doc,
        )
        order = _by_score(scores)
        if body.texts is not None:
            ranks: list[dict[str, Any]] = [
                {"index": index, "score": scores[index].value} for index in order
            ]
            if body.return_text:
                ranks = [rank | {"text": texts[rank["index"]]} for rank in ranks]
            return (orjson.dumps(ranks),)
        returns = body.return_documents
        if returns is None:
            # Cohere's second version never returns them, Jina and vLLM do.
            returns = not is_cohere
        results: list[dict[str, Any]] = []
        for index in order[: body.top_n or None]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index].value}
            if returns:
                result["document"] = {"text": texts[index]}
            results.append(result)
        document = {
            "id": f"rerank-{uuid4().hex}",
            "object": "list",
            "model": body.model or call.model_name,
            "results": results,
            "usage": usage(call.tokens),
            "meta": {"billed_units": {"search_units": 1}},
        }
        return (orjson.dumps(document),)

    async def _ranking(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(RankingBody)
        call.priority = priority_of(body.priority)
        if not body.passages:
            raise InvalidParameter(
                "passages", "'passages' cannot be an empty array.", "empty_array"
            )
        pairs = [(body.query.text, passage.text) for passage in body.passages]
        scores = await self._scores(call, body.model, pairs, body, "passages", raw=True)
        document = {
            "rankings": [
                {"index": index, "logit": scores[index].value} for index in _by_score(scores)
            ],
            "usage": usage(call.tokens),
        }
        return (orjson.dumps(document),)

    async def _score(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(ScoreBody)
        call.priority = priority_of(body.priority)
        pairs = _score_pairs(body)
        scores = await self._scores(call, body.model, pairs, body, "documents", raw=_is_raw(body))
        document = {
            "id": f"score-{uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "data": [
                {"index": index, "object": "score", "score": score.value}
                for index, score in enumerate(scores)
            ],
            "usage": usage(call.tokens),
        }
        return (orjson.dumps(document),)

    async def _similarity(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(SimilarityBody)
        inputs = body.inputs
        if not inputs.sentences:
            raise InvalidParameter("inputs.sentences", "'sentences' cannot be an empty array.")
        pairs = [(inputs.source_sentence, sentence) for sentence in inputs.sentences]
        fields = body.parameters or body

        def prompts_of(model: TextModel) -> tuple[str, str]:
            prompt = fields.prompt(model)
            return prompt, prompt

        scores = await self._scores(
            call, body.model, pairs, fields, "inputs", default_task=EMBED, prompts_of=prompts_of
        )
        return (orjson.dumps([score.value for score in scores]),)

    async def _scores(  # noqa: PLR0913
        self,
        call: TextCall,
        name: str | None,
        all_pairs: list[tuple[str, str]],
        fields: TruncationFields,
        parameter: str,
        *,
        raw: bool = False,
        default_task: str = RANK,
        document_tokens: int | None = None,
        prompts_of: Callable[[TextModel], tuple[str, str]] = _ranking_prompts,
    ) -> list[Score]:
        """Return the scores of pairs.

        prompts_of: returns an embedder's prompts of the first and of the second texts.
        default_task: the task of the model that serves a call without a model's name.
        document_tokens: limit to which the second texts are truncated.
        """
        if len(all_pairs) > _MAX_PAIRS:
            raise InvalidParameter(
                parameter,
                f"'{parameter}' has {len(all_pairs)} items, more than {_MAX_PAIRS}; send several"
                " requests.",
                "array_above_max_length",
            )

        async def work(model: TextModel) -> list[Score]:
            limit = fields.limit(model, parameter)
            pairs = all_pairs
            if document_tokens is not None:
                pairs = await _shortened(call, model, pairs, document_tokens)
            if RANK not in model.mapping.tasks:
                texts, numbers = _distinct(pairs, *prompts_of(model))
                rows = await call.rows(model, texts, limit)
                vectors = await call.infer(rows, partial(self._vector, model))
                if len(set(map(len, vectors))) > 1:
                    raise InvalidParameter(
                        "model", f"The vectors of the model '{model.name}' differ in length."
                    )
                cosines = [float(vectors[first] @ vectors[second]) for first, second in numbers]
                return [Score(cosine, cosine) for cosine in cosines]
            rows = await call.rows(model, pairs, limit)
            activation = "none" if raw else model.mapping.activation
            return await call.infer(rows, partial(self._pair_score, model, activation))

        tasks = (default_task,) if name is None else (RANK, EMBED)
        return await call.with_model(name, tasks, work)

    def _vector(self, model: TextModel, response: InferResponse, row: Row) -> Vector:
        array = self._outputs.read(response, model.mapping.output)
        vector = outputs.pooled_vector(array, model.mapping, row)
        return outputs.normalized(model.layers.apply(vector))

    def _pair_score(
        self, model: TextModel, activation: str, response: InferResponse, _row: Row
    ) -> Score:
        logits = self._outputs.read(response, model.mapping.output)
        if not logits.size:
            raise Internal(f"output '{model.mapping.output}' is empty")
        # With two labels, the second one is that of related texts.
        value = float(outputs.activated(logits, activation)[-1])
        return Score(value, outputs.evidence(logits, activation))


def _by_score(scores: Sequence[Score]) -> list[int]:
    """Return the places of scores, the highest first. Equal ones keep their order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index].evidence)


async def _shortened(
    call: TextCall, model: TextModel, pairs: list[tuple[str, str]], max_tokens: int
) -> list[tuple[str, str]]:
    if max_tokens < 1:
        raise InvalidParameter("max_tokens_per_doc", "'max_tokens_per_doc' must be at least 1.")
    tokenizer = await call.tokenizer(model)
    documents = [second for _, second in pairs]
    shortened: list[str] = []
    for begin, end, size in split_jobs([*map(len, documents)]):

        def shorten(begin: int = begin, end: int = end) -> list[str]:
            return [tokenizer.shorten(text, max_tokens) for text in documents[begin:end]]

        shortened += await call.run(size, shorten)
    return [(first, text) for (first, _), text in zip(pairs, shortened, strict=True)]


def _documents(body: RerankBody) -> list[str]:
    if body.documents is not None and body.texts is not None:
        raise InvalidParameter("documents", "'documents' and 'texts' exclude each other.")
    if body.documents is None and body.texts is None:
        raise missing("documents")
    texts = body.texts
    if isinstance(body.documents, str):
        return [body.documents]
    if texts is None:
        texts = [each if isinstance(each, str) else each.text for each in body.documents or ()]
    if not texts:
        name = "documents" if body.texts is None else "texts"
        raise InvalidParameter(name, f"'{name}' cannot be an empty array.", "empty_array")
    return texts


def _is_raw(body: RerankBody | ScoreBody) -> bool:
    return body.raw_scores or False in (body.use_activation, body.activation)


def _score_pairs(body: ScoreBody) -> list[tuple[str, str]]:
    (first_name, first), (second_name, second) = [_given(body, names) for names in _SCORE_NAMES]
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise InvalidParameter(
            first_name,
            f"{len(first)} items of '{first_name}' cannot be paired with {len(second)} of"
            f" '{second_name}'.",
        )
    return list(zip(first, second, strict=True))


def _given(body: ScoreBody, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the only one of several fields that is set, and its texts."""
    given = [name for name in names if getattr(body, name) is not None]
    if not given:
        raise missing(names[0])
    if len(given) > 1:
        listed = " and ".join(map(repr, given))
        raise InvalidParameter(given[1], f"{listed} exclude each other.")
    name = given[0]
    value: str | list[str] = getattr(body, name)
    if isinstance(value, str):
        return name, [value]
    if not value:
        raise InvalidParameter(name, f"'{name}' cannot be an empty array.", "empty_array")
    return name, value


def _distinct(
    pairs: list[tuple[str, str]], query: str, document: str
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the texts to embed, each once, and each pair's places among them.

    query, document: prompts of the first and of the second texts.
    """
    places: dict[str, int] = {}
    numbers = [
        (
            places.setdefault(query + first, len(places)),
            places.setdefault(document + second, len(places)),
        )
        for first, second in pairs
    ]
    return list(places), numbers
