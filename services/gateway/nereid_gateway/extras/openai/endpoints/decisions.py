"""Answers to typed questions about an input: OpenAI's decisions, and System One's older form."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import orjson

from nereid.text.decisions import MarkerRows, QuestionRefused
from nereid.text.mapping import DECIDE
from nereid.text.questions import (
    CHOICE,
    MIN_OPTIONS,
    PREDICATE,
    SCORE,
    SYSTEM_ONE_TYPES,
    Option,
    Question,
    json_text,
    predicate,
    read_questions,
)
from nereid_gateway.extras.openai.bodies import Body
from nereid_gateway.extras.openai.calls import split_jobs
from nereid_gateway.extras.openai.conversations import (
    InputImage,
    InputJson,
    InputText,
    read_content,
    read_input,
)
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.probabilities import (
    confidence,
    expected_level,
    most_probable,
    option_probabilities,
)
from nereid_gateway.extras.openai.texts.question_rows import QuestionEncoder, QuestionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from nereid.core.wire.messages import InferResponse
    from nereid.text.decisions import DecisionMapping
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.openai.calls import TextCall, TextServices
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.server.call import HttpCall

_MAX_QUESTIONS: Final = 400
_MAX_OPTIONS: Final = 255
_MAX_ROWS: Final = 4096
# Work on an option apart from its text, in characters that take as long to tokenize.
_OPTION_CHARACTERS: Final = 128
_USUAL_CONFIDENCE: Final = "max-probability"
_DECIMALS: Final = 4
_VERSION_LINE: Final = b"NoulXP-Version: 0.2\r\n"
_SYSTEM_ONE_NAMES: Final = {kind: name for name, kind in SYSTEM_ONE_TYPES.items()}

Instructions = str | list[InputText | InputImage | InputJson]


class ChoiceOption(msgspec.Struct, forbid_unknown_fields=True):
    """A choice. The string "true" is another value than the boolean."""

    value: str | bool
    description: str | None = None


class Level(msgspec.Struct, forbid_unknown_fields=True):
    """A level of a score."""

    label: str
    description: str | None = None


class _QuestionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    instructions: Instructions
    name: str | None = None


class PredicateBody(_QuestionBody, tag=PREDICATE):
    """Question how probably a statement is true."""


class ChoiceBody(_QuestionBody, tag=CHOICE):
    """Question for one of several values."""

    choices: list[ChoiceOption]


class ScoreBody(_QuestionBody, tag=SCORE):
    """Question for a level, from the lowest to the highest."""

    levels: list[Level]


AnyQuestion = PredicateBody | ChoiceBody | ScoreBody


class CacheOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of OpenAI's cache of prefixes."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] = "30m"


class DecisionBody(Body, kw_only=True):
    """Body of /v1/decisions."""

    model: str
    input: str | list[dict[str, Any]]
    questions: list[AnyQuestion]
    # Accepted without effect.
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = None


class SystemOneBody(Body, kw_only=True, forbid_unknown_fields=False):
    """Body of /v1/systemone, whose servers ignore unknown fields."""

    questions: dict[str, Any]
    state: Any = None
    model: str | None = None


class _Result(NamedTuple):
    """Probabilities of a question's options, or the reason why the model cannot read it."""

    probabilities: list[float]
    refusal: str = ""


class OpenAiDecisions:
    """Handlers of the routes that respond with decisions."""

    def __init__(self, services: TextServices) -> None:
        self._serve = services.serve
        self._outputs = services.outputs

    async def decide(self, call: HttpCall, _route: Route) -> None:
        """Respond with an answer to each question. Those that the model cannot read are refused."""
        await self._serve(call, "decide", self._decide)

    async def system_one(self, call: HttpCall, _route: Route) -> None:
        """Respond as servers of System One models do."""
        await self._serve(call, "decide", self._system_one)

    async def _decide(self, call: TextCall) -> Sequence[bytes]:
        body = await call.read_body(DecisionBody)
        _check_count(len(body.questions))

        def read() -> tuple[str, list[Question]]:
            questions = [
                _read_question(question, f"questions[{index}]")
                for index, question in enumerate(body.questions)
            ]
            return read_input(body.input), questions

        text, questions = await call.run(len(call.call.body), read)

        def encode(decisions: DecisionMapping, results: list[_Result]) -> bytes:
            document = {
                "model": body.model,
                "answers": [
                    _openai_document(each, result, decisions)
                    for each, result in zip(body.questions, results, strict=True)
                ],
                "usage": {
                    "input_tokens": call.tokens,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": 0,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": call.tokens,
                },
            }
            return orjson.dumps(document)

        return await self._respond(call, body.model, text, questions, encode)

    async def _system_one(self, call: TextCall) -> Sequence[bytes]:
        call.header_lines = _VERSION_LINE
        begun_s = time.monotonic()
        body = await call.read_body(SystemOneBody)
        _check_count(len(body.questions))

        def read() -> tuple[str, list[Question]]:
            text = "" if body.state is None else json_text(body.state)
            return text, read_questions(body.questions)

        text, questions = await call.run(len(call.call.body), read)

        def encode(decisions: DecisionMapping, results: list[_Result]) -> bytes:
            document = {
                "model": call.model_name,
                "answers": {
                    name: _system_one_document(question, result.probabilities, decisions)
                    for name, question, result in zip(
                        body.questions, questions, results, strict=True
                    )
                },
                "usage": {"input_tokens": call.tokens, "output_tokens": 0},
                "latency_ms": round((time.monotonic() - begun_s) * 1000, 2),
            }
            return orjson.dumps(document)

        return await self._respond(call, body.model, text, questions, encode, refuses_all=True)

    async def _respond(  # noqa: PLR0913
        self,
        call: TextCall,
        name: str | None,
        text: str,
        questions: list[Question],
        encode: Callable[[DecisionMapping, list[_Result]], bytes],
        *,
        refuses_all: bool = False,
    ) -> Sequence[bytes]:
        """Return what `encode` makes of the questions' results.

        refuses_all: raise QuestionRefused if the model cannot read one of the questions.
        """

        async def work(model: TextModel) -> bytes:
            decisions = model.mapping.decisions
            assert decisions is not None, "the model's tasks include decisions"
            _check_limits(decisions, questions)
            begun_ns = time.monotonic_ns()
            encoded = await _encode(call, model, decisions, text, questions)
            refusal = next((each.refusal for each in encoded if each.refusal), "")
            if refuses_all and refusal:
                raise QuestionRefused(refusal)
            rows = [row for each in encoded for row in each.rows]
            call.hold_rows(rows, begun_ns)

            def read(response: InferResponse, _row: Row) -> NDArray[np.float64]:
                # A copy: the response's buffer may be reused before the last row is read.
                return self._outputs.read(response, model.mapping.output).astype(np.float64)

            outputs = iter(await call.infer(rows, read))

            def finish() -> bytes:
                results = [
                    _Result([], refusal)
                    if refusal
                    else _Result(
                        option_probabilities(question, [next(outputs) for _ in own], decisions)
                    )
                    for question, (own, refusal) in zip(questions, encoded, strict=True)
                ]
                return encode(decisions, results)

            return await call.run(_work_on(questions), finish)

        return (await call.with_model(name, (DECIDE,), work),)


async def _encode(
    call: TextCall,
    model: TextModel,
    decisions: DecisionMapping,
    text: str,
    questions: list[Question],
) -> list[QuestionRows]:
    await call.tokenizer(model)
    encoder = await call.run(len(text), lambda: QuestionEncoder(model, decisions, text))
    encoded: list[QuestionRows] = []
    for begin, end, size in split_jobs([_work_on([question]) for question in questions]):
        job = questions[begin:end]

        def encode(job: Sequence[Question] = job) -> list[QuestionRows]:
            return encoder.encode(job)

        encoded += await call.run(size, encode)
    return encoded


def _work_on(questions: Sequence[Question]) -> int:
    """Return the work on questions, in characters that are tokenized."""
    return sum(
        len(question.instructions)
        + sum(
            _OPTION_CHARACTERS + len(option.name) + len(option.description or "")
            for option in question.options
        )
        for question in questions
    )


def _check_count(count: int) -> None:
    if not 1 <= count <= _MAX_QUESTIONS:
        raise InvalidParameter(
            "questions",
            f"'questions' has {count} items, but expected are 1 to {_MAX_QUESTIONS}.",
            "array_above_max_length" if count else "empty_array",
        )


def _check_limits(decisions: DecisionMapping, questions: Sequence[Question]) -> None:
    most = decisions.limits.questions
    if 0 < most < len(questions):
        raise QuestionRefused(
            f"'questions' has {len(questions)} items, but the model takes up to {most}."
        )
    if isinstance(decisions.rows, MarkerRows):
        return
    rows = sum(1 if each.type == PREDICATE else len(each.options) for each in questions)
    if rows > _MAX_ROWS:
        raise InvalidParameter(
            "questions",
            f"'questions' has {rows} options in all, more than {_MAX_ROWS}; send several requests.",
            "array_above_max_length",
        )


def _read_question(body: AnyQuestion, path: str) -> Question:
    instructions = read_content(body.instructions, f"{path}.instructions")
    if isinstance(body, PredicateBody):
        return predicate(path, instructions)
    if isinstance(body, ChoiceBody):
        _check_options(len(body.choices), f"{path}.choices")
        # The boolean True equals no string.
        if len({each.value for each in body.choices}) < len(body.choices):
            raise InvalidParameter(
                f"{path}.choices", f"'{path}.choices' has a value twice.", "invalid_value"
            )
        options = [Option(json_text(each.value), each.description or None) for each in body.choices]
        return Question(path, CHOICE, instructions, tuple(options))
    _check_options(len(body.levels), f"{path}.levels")
    options = [
        Option(str(index), f"{each.label}: {each.description}" if each.description else each.label)
        for index, each in enumerate(body.levels)
    ]
    return Question(path, SCORE, instructions, tuple(options))


def _check_options(count: int, path: str) -> None:
    if not MIN_OPTIONS <= count <= _MAX_OPTIONS:
        raise InvalidParameter(
            path,
            f"'{path}' has {count} items, but expected are {MIN_OPTIONS} to {_MAX_OPTIONS}.",
            "array_above_max_length" if count > _MAX_OPTIONS else "array_below_min_length",
        )


def _openai_document(
    question: AnyQuestion, result: _Result, decisions: DecisionMapping
) -> dict[str, Any]:
    """Return an answer in OpenAI's form."""
    values = result.probabilities
    if result.refusal:
        # OpenAI's has no reason, without which nobody could mend the question.
        return {"type": "refusal", "name": question.name, "reason": result.refusal}
    if isinstance(question, PredicateBody):
        return {"type": PREDICATE, "name": question.name, "probability": values[1]}
    kind = CHOICE if isinstance(question, ChoiceBody) else SCORE
    certain = confidence(decisions.confidence[kind], values)
    if certain is None:
        # OpenAI's answers always have one.
        certain = confidence(_USUAL_CONFIDENCE, values)
    if isinstance(question, ChoiceBody):
        return {
            "type": CHOICE,
            "name": question.name,
            "choice": question.choices[most_probable(values)].value,
            "confidence": certain,
            "probabilities": [
                {"value": choice.value, "probability": value}
                for choice, value in zip(question.choices, values, strict=True)
            ],
        }
    return {
        "type": SCORE,
        "name": question.name,
        "score": expected_level(values),
        "confidence": certain,
        "probabilities": [
            {"value": index, "label": level.label, "probability": value}
            for index, (level, value) in enumerate(zip(question.levels, values, strict=True))
        ],
    }


def _system_one_document(
    question: Question, values: list[float], decisions: DecisionMapping
) -> dict[str, Any]:
    """Return an answer in System One's form."""
    rounded = [round(value, _DECIMALS) for value in values]
    result: dict[str, Any] = {"type": _SYSTEM_ONE_NAMES[question.type]}
    names = [option.name for option in question.options]
    if question.type == PREDICATE:
        result["noul"] = rounded[1]
    elif question.type == CHOICE:
        result["choice"] = names[most_probable(values)]
        result["probabilities"] = dict(zip(names, rounded, strict=True))
    else:
        result["score"] = round(expected_level(values), _DECIMALS)
        result["legend"] = {option.name: option.description or "" for option in question.options}
        result["probabilities"] = dict(zip(names, rounded, strict=True))
    certain = confidence(decisions.confidence[question.type], values)
    if certain is not None:
        result["confidence"] = round(certain, _DECIMALS)
    return result
