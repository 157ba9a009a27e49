"""Labels of texts: vLLM's classify, TEI's predict, OpenAI's moderations."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

import msgspec
import orjson

from nereid.core.errors import Internal
from nereid.text.mapping import CLASSIFY, RANK
from nereid_gateway.extras.openai.bodies import Body, texts_of
from nereid_gateway.extras.openai.calls import TruncationFields
from nereid_gateway.extras.openai.endpoints.text_fields import InputFields, priority_of, usage
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts import outputs
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_TASKS: Final = (CLASSIFY, RANK)
_FLAG_AT: Final = 0.5
# Labels of classifiers for texts that are no case for moderation.
_HARMLESS: Final = frozenset(
    {"benign", "clean", "neutral", "none", "normal", "nottoxic", "nontoxic", "ok", "safe", "sfw"}
)


class ClassifyBody(InputFields, kw_only=True):
    """Body of vLLM's /v1/classify."""

    # vLLM's, by its names from the newest to the oldest.
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None


class PredictBody(TruncationFields, kw_only=True):
    """Body of TEI's /predict: a text, a pair, or a list of lists with one or two texts."""

    inputs: str | list[str | list[str]]
    model: str | None = None
    raw_scores: bool = False


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a moderation's input."""

    type: Literal["text"]
    text: str


class ModerationBody(Body, kw_only=True):
    """Body of /v1/moderations."""

    input: str | list[str | TextPart]
    model: str | None = None


class OpenAiClassification:
    """Handlers of the routes that respond with labels."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._outputs = services.outputs

    async def classify(self, call: HttpCall, _route: Route) -> None:
        """Respond with the most probable label and all probabilities."""
        await self._serve(call, "classify", self._classify)

    async def predict(self, call: HttpCall, _route: Route) -> None:
        """Respond with the labels in the order of their scores."""
        await self._serve(call, "classify", self._predict)

    async def moderate(self, call: HttpCall, _route: Route) -> None:
        """Respond with the categories of each text."""
        await self._serve(call, "moderation", self._moderate)

    async def _classify(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(ClassifyBody)
        call.priority = priority_of(body.priority)
        raw = False in (body.use_activation, body.activation, body.softmax)

        async def work(model: TextModel) -> list[dict[str, Any]]:
            rows = await body.rows(call, model)
            scores = await call.infer(rows, partial(self._scores, model, raw))
            return [
                {
                    "index": index,
                    "label": _label(model, max(range(len(probs)), key=probs.__getitem__)),
                    "probs": probs,
                    "num_classes": len(probs),
                }
                for index, probs in enumerate(scores)
            ]

        document = {
            "id": f"classify-{uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "data": await call.with_model(body.model, _TASKS, work),
            "model": body.model or call.model_name,
            "usage": usage(call.tokens),
        }
        return (orjson.dumps(document),)

    async def _predict(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(PredictBody)
        texts, is_batch = _predict_texts(body.inputs)

        async def work(model: TextModel) -> list[list[dict[str, Any]]]:
            rows = await call.rows(model, texts, body.limit(model, "inputs"))
            scores = await call.infer(rows, partial(self._scores, model, body.raw_scores))
            return [
                [
                    {"score": each[index], "label": _label(model, index)}
                    for index in sorted(range(len(each)), key=lambda index: -each[index])
                ]
                for each in scores
            ]

        tasks = (CLASSIFY,) if body.model is None else _TASKS
        predictions = await call.with_model(body.model, tasks, work)
        return (orjson.dumps(predictions if is_batch else predictions[0]),)

    async def _moderate(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(ModerationBody)
        texts = _moderated_texts(body.input)

        async def work(model: TextModel) -> list[dict[str, Any]]:
            # Texts of any length are moderated, by their beginning.
            limit = TokenLimit(model.mapping.max_tokens, truncates=True)
            rows = await call.rows(model, texts, limit)
            scores = await call.infer(rows, partial(self._scores, model, False))
            return [_moderation(model, each) for each in scores]

        results = await call.with_model(body.model, (CLASSIFY,), work)
        document = {"id": f"modr-{uuid4().hex}", "model": call.model_name, "results": results}
        return (orjson.dumps(document),)

    def _scores(
        self, model: TextModel, raw: bool, response: InferResponse, _row: Row
    ) -> list[float]:
        array = self._outputs.read(response, model.mapping.output)
        if not array.size:
            raise Internal(f"output '{model.mapping.output}' is empty")
        scores: list[float] = outputs.activated(
            array, "none" if raw else model.mapping.activation
        ).tolist()
        return scores


def _label(model: TextModel, index: int) -> str:
    labels = model.mapping.labels
    return labels[index] if index < len(labels) else f"LABEL_{index}"


def _predict_texts(inputs: str | list[str | list[str]]) -> tuple[list[Any], bool]:
    """Return texts or pairs, and whether the response is a list for each of them."""
    if isinstance(inputs, str):
        return [inputs], False
    if not inputs:
        raise InvalidParameter("inputs", "'inputs' cannot be an empty array.", "empty_array")
    if all(isinstance(each, str) for each in inputs):
        # TEI: a flat list is one text, or one pair.
        items: list[Any] = [inputs]
        is_batch = False
    else:
        items = [[each] if isinstance(each, str) else each for each in inputs]
        is_batch = True
    if not all(1 <= len(item) <= 2 for item in items):
        raise InvalidParameter("inputs", "each item of 'inputs' has one text or two.")
    return [item[0] if len(item) == 1 else tuple(item) for item in items], is_batch


def _moderated_texts(value: str | list[str | TextPart]) -> list[str]:
    if isinstance(value, str):
        return [value]
    if value and all(isinstance(each, TextPart) for each in value):
        # The parts are one input.
        return ["\n".join(each.text for each in value if isinstance(each, TextPart))]
    texts: list[str] = texts_of([each if isinstance(each, str) else each.text for each in value])
    return texts


def _moderation(model: TextModel, scores: list[float]) -> dict[str, Any]:
    by_label = {_label(model, index): score for index, score in enumerate(scores)}
    categories = {label: score >= _FLAG_AT for label, score in by_label.items()}
    return {
        "flagged": any(
            flagged and not _is_harmless(label) for label, flagged in categories.items()
        ),
        "categories": categories,
        "category_scores": by_label,
        "category_applied_input_types": {label: ["text"] for label in by_label},
    }


def _is_harmless(label: str) -> bool:
    return "".join(filter(str.isalpha, label.lower())) in _HARMLESS
