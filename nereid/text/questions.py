"""Typed questions about an input, and their older JSON form, which System One servers take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.text.documents import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

PREDICATE: Final = "predicate"
CHOICE: Final = "choice"
SCORE: Final = "score"
TYPES: Final = (PREDICATE, CHOICE, SCORE)
# Names of the types in System One's API and in packages of NoulXP.
SYSTEM_ONE_TYPES: Final = {"noul": PREDICATE, CHOICE: CHOICE, SCORE: SCORE}
TRUTH: Final = ("false", "true")
MIN_OPTIONS: Final = 2


class Option(NamedTuple):
    """An option of a question. Options of a predicate are false and true."""

    name: str
    description: str | None = None


class Question(NamedTuple):
    """A question. key: what errors call it."""

    key: str
    type: str
    instructions: str
    # Levels of a score are in ascending order, and named by their index.
    options: tuple[Option, ...]


def predicate(key: str, instructions: str) -> Question:
    """Return the question how probably a statement is true."""
    return Question(key, PREDICATE, instructions, tuple(map(Option, TRUTH)))


def read_questions(values: Mapping[str, object]) -> list[Question]:
    """Return the questions of a System One request, which are objects by name.

    Raises InvalidArgument.
    """
    if not values:
        raise InvalidArgument("questions: expected at least one")
    return [_read_question(name, value) for name, value in values.items()]


def _read_question(name: str, value: object) -> Question:
    key = f"questions.{name[:64]}"
    if not isinstance(value, dict):
        raise InvalidArgument(f"{key}: expected an object")
    document = Document(key, value)
    kind = SYSTEM_ONE_TYPES.get(document.string("type"))
    if kind is None:
        raise document.refuse("type", f"expected one of {', '.join(SYSTEM_ONE_TYPES)}")
    criteria = value.get("criteria")
    if kind == PREDICATE:
        options = _read_truth(document, criteria)
    elif kind == CHOICE:
        options = _read_choices(document, criteria)
    elif isinstance(criteria, list):
        options = [
            Option(str(index), _description(document, level))
            for index, level in enumerate(criteria)
        ]
    else:
        raise document.refuse("criteria", "expected a list of levels, the lowest first")
    if len(options) < MIN_OPTIONS:
        raise document.refuse("criteria", f"expected at least {MIN_OPTIONS}")
    return Question(key, kind, document.string("instructions"), tuple(options))


def _read_truth(document: Document, criteria: object) -> list[Option]:
    given = {} if criteria is None else criteria
    if not isinstance(given, dict) or not given.keys() <= {*TRUTH}:
        raise document.refuse("criteria", 'expected descriptions of "false" and "true"')
    return [Option(name, _description(document, given.get(name))) for name in TRUTH]


def _read_choices(document: Document, criteria: object) -> list[Option]:
    if isinstance(criteria, dict):
        choices = Document(document.source, {"criteria": [*criteria]})
        names = choices.strings("criteria")
        descriptions = [_description(document, each) for each in criteria.values()]
    elif isinstance(criteria, list):
        names = document.strings("criteria")
        descriptions = [None] * len(names)
    else:
        raise document.refuse("criteria", "expected an object or a list of choices")
    if not all(names) or len({*names}) < len(names):
        raise document.refuse("criteria", "choices must be unique and not empty")
    return [*map(Option, names, descriptions)]


def _description(document: Document, value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return Document(document.source, {"criteria": value}).string("criteria")
    return json_text(value)


def json_text(value: object) -> str:
    """Return a JSON value as models read it: strings as they are, others as Python writes them.

    Raises InvalidArgument for lists in lists in lists.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidArgument("JSON with too deep lists") from None
