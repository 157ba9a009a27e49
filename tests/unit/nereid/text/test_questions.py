"""Questions of System One requests."""

from __future__ import annotations

from typing import Any

import pytest
from noulxp.conformance import DEFAULT_REQUESTS, read_jsonl
from noulxp.request import parse_questions

from nereid.core.errors import InvalidArgument
from nereid.text.questions import (
    CHOICE,
    PREDICATE,
    SYSTEM_ONE_TYPES,
    Option,
    Question,
    json_text,
    read_questions,
)


def read(**question: Any) -> Question:
    (found,) = read_questions({"q": question})
    return found


def test_questions_are_those_of_the_reference_runtime() -> None:
    for case in read_jsonl(DEFAULT_REQUESTS):
        values = case["request"]["questions"]
        for found, expected in zip(read_questions(values), parse_questions(values), strict=True):
            assert found.key == f"questions.{expected.id}"
            assert found.type == SYSTEM_ONE_TYPES[expected.type]
            assert found.instructions == expected.instructions
            assert found.options == tuple(
                Option(option.name, option.description) for option in expected.options
            )


def test_descriptions_that_are_no_texts_are_written_as_json() -> None:
    described = read(type="choice", criteria={"a": {"é": [1.0]}, "b": "", "c": None, "d": "x"})
    assert described.type == CHOICE
    assert [option.description for option in described.options] == ['{"é": [1.0]}', None, None, "x"]
    assert read(type="score", criteria=[1, "b"]).options == (Option("0", "1"), Option("1", "b"))
    assert read(type="noul", criteria={"true": "t"}).options == (
        Option("false", None),
        Option("true", "t"),
    )
    assert read(type="noul", instructions=None) == Question(
        "questions.q", PREDICATE, "", (Option("false"), Option("true"))
    )


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ({"type": 1}, "type: expected a string"),
        ({"type": "x"}, "type: expected one of noul, choice, score"),
        ({"type": "noul", "instructions": 1}, "instructions: expected a string"),
        ({"type": "noul", "criteria": []}, 'criteria: expected descriptions of "false" and "true"'),
        ({"type": "noul", "criteria": {"yes": ""}}, "criteria: expected descriptions of"),
        ({"type": "choice"}, "criteria: expected an object or a list of choices"),
        ({"type": "choice", "criteria": ["a"]}, "criteria: expected at least 2"),
        ({"type": "choice", "criteria": ["a", ""]}, "criteria: choices must be unique and not emp"),
        ({"type": "choice", "criteria": ["a", 1]}, "criteria: expected a list of strings"),
        (
            {"type": "choice", "criteria": {"a\ud800": 1, "b": 1}},
            "criteria: expected a list of str",
        ),
        ({"type": "score", "criteria": "a"}, "criteria: expected a list of levels"),
        ({"type": "score", "criteria": ["a", "\ud800"]}, "criteria: expected a string"),
    ],
)
def test_what_is_wrong_is_named(question: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(**question)
    assert refused.value.message.startswith(f"questions.q: {text}")


def test_deep_json_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="too deep"):
        json_text(deep)
