"""Ways in which models decide: rows of a question, and calibrated probabilities of its options.

A model that reads pairs gets a row for each option: the input, and a statement. One that reads
markers gets a row for each question, which has a marker token in front of each option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.text.questions import CHOICE, PREDICATE, SCORE, TRUTH, TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.text.questions import Option, Question
    from nereid.text.tensors import TextInput

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
# Rules that packages of NoulXP may name.
CONFIDENCE_RULES: Final = ("max-probability", "entropy", "typesafe", "typesafe-ordinal", "none")
# Parts of a row with markers.
HEAD: Final = "head"
OPTIONS: Final = "options"
INPUT: Final = "state"
PARTS: Final = (HEAD, OPTIONS, INPUT)


class QuestionRefused(InvalidArgument):
    """The model cannot read a question, although the question is valid."""


class Form(NamedTuple):
    """Templates of an option's text, with and without a description. None: there is no such."""

    described: str | None
    bare: str | None

    def text(self, question: Question, option: Option, index: int) -> str:
        """Return an option's text. Raises QuestionRefused if the model needs a description."""
        template = self.bare if option.description is None else self.described
        if template is None:
            missing = "a" if option.description is None else "no"
            raise QuestionRefused(
                f"{question.key}: option '{option.name[:64]}' needs {missing} description for this"
                " model"
            )
        return fill(
            template,
            type=question.type,
            instructions=question.instructions,
            name=option.name,
            description=option.description or "",
            index=str(index),
        )


# Forms by type of question; for predicates there is one for false and one for true.
Forms = dict[str, tuple[Form, ...]]
_PLAIN: Final = Form("{instructions} {name}: {description}", "{instructions} {name}")
_LEVEL: Final = Form("{instructions} {description}", "{instructions} {name}")
PLAIN_FORMS: Final[Forms] = {
    PREDICATE: (Form("{instructions}", "{instructions}"),),
    CHOICE: (_PLAIN,),
    SCORE: (_LEVEL,),
}


def option_texts(forms: Forms, question: Question) -> list[str]:
    """Return the texts of a question's options. May raise QuestionRefused."""
    own = forms[question.type]
    options = question.options
    if question.type == PREDICATE:
        # With one form, it is that of true.
        indices = range(len(TRUTH) - len(own), len(TRUTH))
        return [
            form.text(question, options[index], index)
            for form, index in zip(own, indices, strict=True)
        ]
    return [own[0].text(question, option, index) for index, option in enumerate(options)]


@dataclass(frozen=True, slots=True)
class PairRows:
    """Rows of an input and a statement, of which the model says whether the one entails the other.

    A predicate has one statement.
    """

    forms: Forms = field(default_factory=lambda: PLAIN_FORMS)
    # Place of the logit that says that the statement holds, and of the one that says the contrary,
    # if there is one.
    label: int = 0
    contrary: int | None = None
    # Inputs that are too long are cut, rather than refused.
    truncates: bool = False


@dataclass(frozen=True, slots=True)
class MarkerRows:
    """Rows with a marker for each option, as templates of NoulXP describe them.

    Lengths are in tokens.
    """

    # Key: a role, such as "marker", "pad", "cls".
    tokens: Mapping[str, str]
    type_ids: Mapping[str, int]
    # Roles of tokens and names of parts, in order.
    layout: tuple[str, ...]
    head: str
    forms: Forms
    # Text in front of each option.
    prefix: str
    max_tokens: int
    max_head: int
    max_option: int
    # Options are cut if a question's head has less space; this is left of each of them, or of the
    # head, then.
    reserve: int
    min_option: int
    min_head: int
    # Questions and inputs that are too long are refused, rather than cut.
    is_strict: bool
    # The marker's text in an input is refused, rather than replaced by a space.
    refuses_marker: bool
    # Instructions of questions without any, by type, and whether a question must have some.
    fallbacks: Mapping[str, str]
    needs_instructions: bool
    # Positions of markers, 1 or true for each of them, and the number of the question's type.
    positions: TextInput
    mask: TextInput
    type: TextInput

    @property
    def marker(self) -> str:
        """The token in front of each option."""
        return self.tokens["marker"]

    def head_text(self, question: Question) -> str:
        """Return the text in front of a question's options. May raise QuestionRefused."""
        instructions = question.instructions or self.fallbacks.get(question.type, "")
        if not instructions and self.needs_instructions:
            raise QuestionRefused(f"{question.key}: this model needs instructions")
        kind = "noul" if question.type == PREDICATE else question.type
        return fill(self.head, type=kind, instructions=instructions)

    def clean(self, text: str, key: str) -> str:
        """Return a text without markers. Raises QuestionRefused if the model refuses them."""
        if self.marker not in text:
            return text
        if self.refuses_marker:
            raise QuestionRefused(f"{key}: it contains the model's token '{self.marker}'")
        return text.replace(self.marker, " ")


class Calibration(NamedTuple):
    """A step from logits to probabilities, for questions of a type with so many options.

    Either a temperature, or Platt's scaling, or an isotonic regression. The latter two apply to
    each option's probability, after which those of all options are divided by their sum.
    """

    type: str
    min_options: int = 0
    # 0: there is no limit.
    max_options: int = 0
    temperature: float = 1.0
    # Slope and offset of log-odds.
    platt: tuple[float, float] | None = None
    # Probabilities before and after, both ascending; between them it is linear.
    isotonic: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def applies(self, question_type: str, options: int) -> bool:
        """Return whether it is for a question of this type with so many options."""
        return (
            self.type == question_type
            and self.min_options <= options
            and not 0 < self.max_options < options
        )


_UNCALIBRATED: Final = Calibration("")


class DecisionLimits(NamedTuple):
    """Limits of questions. 0: there is none."""

    options: int = 0
    levels: int = 0
    questions: int = 0


_UNLIMITED: Final = DecisionLimits()


class PackageFacts(NamedTuple):
    """Facts of a package of NoulXP that its users may ask for."""

    standard: str
    profile: str
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DecisionMapping:
    """Way in which a model decides."""

    rows: PairRows | MarkerRows
    # The first that applies to a question is used.
    calibrations: tuple[Calibration, ...] = ()
    # Rules by type of question.
    confidence: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(TYPES, CONFIDENCE_RULES[0])
    )
    limits: DecisionLimits = _UNLIMITED
    package: PackageFacts | None = None

    def calibration(self, question: Question) -> Calibration:
        """Return the calibration of a question's logits."""
        kind, count = question.type, len(question.options)
        fitting = (each for each in self.calibrations if each.applies(kind, count))
        return next(fitting, _UNCALIBRATED)

    def check(self, question: Question) -> None:
        """Raise QuestionRefused if the model takes fewer options."""
        count = len(question.options)
        limit = self.limits.options
        if question.type == SCORE and self.limits.levels:
            limit = min(limit or self.limits.levels, self.limits.levels)
        if 0 < limit < count:
            raise QuestionRefused(
                f"{question.key}: it has {count} options, but the model reads up to {limit}"
            )


def fill(template: str, **values: str) -> str:
    """Return a template with its placeholders, such as {name}, replaced. Unknown ones stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
