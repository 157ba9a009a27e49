"""Rows of questions, beside those that NoulXP's own runtime and the tokenizer's library make."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noulxp.errors import RequestError
from noulxp.profiles.encoder_markers import Encoded, Template, encode_question
from noulxp.request import parse_questions
from noulxp.tokens import Tokens

from nereid.text.decisions import QuestionRefused
from nereid.text.questions import CHOICE, Option, Question, predicate, read_questions
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.texts.question_rows import QuestionEncoder, QuestionRows
from tests.support.models import decision_models, text_models

if TYPE_CHECKING:
    from pathlib import Path

    from nereid.text.questions import Question
    from nereid_gateway.extras.openai.texts.text_models import TextModel

TEMPLATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "strict": {"truncation": "strict", "reserved_text": "reject"},
    "short": {"budgets": {"total": 40, "head": 30, "option": 6, "reserve": 4, "option_floor": 2}},
    "tiny": {"budgets": {"total": 12, "head": 8, "option": 3, "head_floor": 0}},
    "short and strict": {
        "budgets": {"total": 60, "head": 30, "option": 12},
        "truncation": "strict",
        "layout": [{"part": "state"}, {"token": "sep"}, {"part": "options"}, {"part": "head"}],
    },
    "needy": {
        "instructions": {"required": True, "fallback": {"noul": "Is it?"}},
        "options": {**decision_models.TEMPLATE["options"], "choice": {"bare": "{name} {index}"}},
    },
}

WORDS = st.lists(
    st.sampled_from(["cat", "<option>", "{name}", "réseau", "नेपाल", "<sep>"]), max_size=9
)
TEXTS = WORDS.map(" ".join)
DESCRIPTIONS = st.none() | TEXTS | st.lists(TEXTS, max_size=2)
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=9, unique=True)


def _spec(kind: str, criteria: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just(kind), "instructions": TEXTS, "criteria": criteria}
    )


QUESTIONS = st.one_of(
    _spec("choice", NAMES),
    _spec(
        "choice",
        NAMES.flatmap(lambda names: st.fixed_dictionaries(dict.fromkeys(names, DESCRIPTIONS))),
    ),
    _spec("score", st.lists(TEXTS.filter(bool), min_size=2, max_size=9)),
    _spec("noul", st.none() | st.fixed_dictionaries({"true": DESCRIPTIONS})),
)


@cache
def template_model(name: str) -> TextModel:
    return decision_models.package_model(TEMPLATES[name])


@cache
def pair_model(*, truncate: bool) -> TextModel:
    text = {"max_tokens": 32, "decisions": {"truncate": truncate}}
    files = {
        "tokenizer.json": text_models.tokenizer().to_str().encode(),
        "text.json": json.dumps(text).encode(),
    }
    return decision_models.text_model(decision_models.PAIRS, files)


def encoded(model: TextModel, text: str, questions: list[Question]) -> list[QuestionRows]:
    assert model.mapping.decisions is not None
    return QuestionEncoder(model, model.mapping.decisions, text).encode(questions)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    decision_models.byte_tokenizer().save(str(path))
    return Tokens(path)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=30)
@given(data=st.data(), state=TEXTS)
def test_rows_are_those_of_the_reference_runtime(
    tokens: Tokens, name: str, data: st.DataObject, state: str
) -> None:
    spec = {"q": data.draw(QUESTIONS)}
    (parsed,) = parse_questions(spec)
    expected: Encoded | None
    try:
        expected = encode_question(
            Template(decision_models.TEMPLATE | TEMPLATES[name]), tokens, parsed, state
        )
    except RequestError:
        expected = None
    try:
        (found,) = encoded(template_model(name), state, read_questions(spec))
        refused = bool(found.refusal)
    except (InvalidParameter, QuestionRefused):
        # The input itself.
        refused = True
    assert refused == (expected is None)
    if expected is not None:
        (row,) = found.rows
        ids, mask, positions, markers, kind = row.payloads
        assert _numbers(ids) == expected.ids
        assert _numbers(mask) == [1] * len(expected.ids)
        assert _numbers(positions) == expected.markers
        assert markers == b"\1" * len(expected.markers)
        assert _numbers(kind) == [expected.qtype]


def _numbers(payload: Any) -> list[int]:
    numbers: list[int] = np.frombuffer(payload, np.int64).tolist()
    return numbers


@settings(max_examples=30)
@given(text=st.lists(st.sampled_from(text_models.WORDS), max_size=70).map(" ".join))
@pytest.mark.parametrize("truncate", [False, True])
def test_pairs_are_those_of_the_library(*, truncate: bool, text: str) -> None:
    tokenizer = text_models.tokenizer()
    model = pair_model(truncate=truncate)
    statements = ["who cat: the dog", "who rain"]
    options = (Option("cat", "the dog"), Option("rain"))
    library = [tokenizer.encode(text, statement) for statement in statements]
    questions = [Question("q", CHOICE, "who", options)]
    if max(map(len, library)) > 32 and not truncate:
        try:
            (found,) = encoded(model, text, questions)
        except InvalidParameter:
            return
        assert found.refusal.startswith("q: with the input it has")
        return
    tokenizer.enable_truncation(32, strategy="only_first")
    (found,) = encoded(model, text, questions)
    for row, statement in zip(found.rows, statements, strict=True):
        expected = tokenizer.encode(text, statement)
        ids, _, types = row.payloads
        assert _numbers(ids) == expected.ids
        assert _numbers(types) == expected.type_ids


def test_a_statement_that_leaves_no_space_for_the_input_is_refused() -> None:
    model = pair_model(truncate=True)
    long, short = encoded(model, "cat", [predicate("q", "cat " * 30), predicate("p", "cat")])
    assert long.refusal == "q: with the input it has 34 tokens, but the model reads up to 32"
    assert (len(short.rows), short.refusal) == (1, "")


def test_a_marker_that_the_tokenizer_lacks_is_named() -> None:
    special = {**decision_models.SPECIAL, "marker": "<none>"}
    with pytest.raises(Exception, match="tokenizer has no token '<none>'"):
        encoded(decision_models.package_model({"special_tokens": special}), "", [])
