"""Rules that say when two tensors count as equal, and their text form.

    probabilities: absolute=1e-5 relative=1e-3; embedding: cosine=0.999; logits: top-k=5; *: exact

Each rule is for the outputs whose name matches a pattern of the shell, and the first one that
matches counts. Without one, floating-point tensors have the tolerances of `DEFAULT_TOLERANCES` and
all others are compared exactly. This module must not import numpy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_RULES: Final = 1000
_MAX_TEXT: Final = 100_000
_ASSIGNMENT: Final = re.compile(r"([a-z-]+)=(\S+)\Z")


@dataclass(frozen=True, slots=True)
class Exact:
    """The bytes of both tensors are equal."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """The tensor is not compared."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Elements differ by at most absolute + relative * abs(old). Equal infinities and NaNs pass."""

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Cosine:
    """The cosine of each pair of vectors along the last axis is at least the minimum."""

    minimum: float


@dataclass(frozen=True, slots=True)
class TopK:
    """The k largest elements along the last axis have the same places; equal elements may swap."""

    k: int


@dataclass(frozen=True, slots=True)
class Text:
    """Strings are equal after Unicode normalisation (NFC); runs of white space are one space."""


Rule = Exact | Ignore | Tolerance | Cosine | TopK | Text

EXACT: Final = Exact()
# Devices and batch sizes round differently.
DEFAULT_TOLERANCES: Final[Mapping[str, Tolerance]] = {
    "FP16": Tolerance(1e-6, 1e-2),
    "BF16": Tolerance(1e-6, 1e-2),
    "FP32": Tolerance(1e-6, 1e-4),
    "FP64": Tolerance(1e-6, 1e-6),
}


@dataclass(frozen=True, slots=True)
class TensorRules:
    """Rules of one model's outputs: patterns of names, in their order."""

    rules: tuple[tuple[str, Rule], ...] = ()

    def rule_of(self, name: str, datatype: str) -> Rule:
        """Return the rule for an output."""
        for pattern, rule in self.rules:
            if fnmatchcase(name, pattern):
                return rule
        return DEFAULT_TOLERANCES.get(datatype, EXACT)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by patterns of models' names, in their order."""

    models: tuple[tuple[str, TensorRules], ...] = ()

    def for_model(self, name: str) -> TensorRules:
        """Return the rules of a model's outputs; the first matching pattern counts."""
        return next((rules for pattern, rules in self.models if fnmatchcase(name, pattern)), _NONE)


_NONE: Final = TensorRules()


def parse_rules(document: Any) -> Rules:
    """Read rules: a text for all models, or an object of texts by patterns of models' names.

    Raises InvalidArgument, with the place and what is allowed there.
    """
    if isinstance(document, str):
        return Rules((("*", parse_tensor_rules(document)),))
    if not isinstance(document, dict):
        raise InvalidArgument("rules are a text, or an object of texts by models' names")
    models = []
    for pattern, text in document.items():
        if not isinstance(text, str):
            raise InvalidArgument(f"rules of model '{pattern}' are no text")
        try:
            models.append((pattern, parse_tensor_rules(text)))
        except InvalidArgument as error:
            raise InvalidArgument(f"model '{pattern}': {error.message}") from None
    return Rules(tuple(models))


def parse_tensor_rules(text: str) -> TensorRules:
    """Read the text form of one model's rules. Raises InvalidArgument."""
    if len(text) > _MAX_TEXT:
        raise InvalidArgument(f"rules have more than {_MAX_TEXT} characters")
    rules: list[tuple[str, Rule]] = []
    for part in re.split(r"[;\n]", text):
        if not part.strip():
            continue
        pattern, colon, words = part.rpartition(":")
        if not colon or not pattern.strip():
            raise InvalidArgument(f"rule '{part.strip()}' is not of the form OUTPUT: RULE")
        try:
            rules.append((pattern.strip(), parse_rule(words)))
        except InvalidArgument as error:
            raise InvalidArgument(f"output '{pattern.strip()}': {error.message}") from None
    if len(rules) > _MAX_RULES:
        raise InvalidArgument(f"more than {_MAX_RULES} rules")
    return TensorRules(tuple(rules))


def parse_rule(text: str) -> Rule:
    """Read one rule, such as `absolute=1e-5 relative=1e-3`. Raises InvalidArgument."""
    words = text.split()
    if len(words) == 1 and words[0] in _PLAIN:
        return _PLAIN[words[0]]
    values: dict[str, str] = {}
    for word in words:
        found = _ASSIGNMENT.match(word)
        if found is None or found[1] in values:
            raise InvalidArgument(f"'{word}' is no rule: {_FORMS}")
        values[found[1]] = found[2]
    if values and values.keys() <= {"absolute", "relative"}:
        return Tolerance(**{name: _number(name, value) for name, value in values.items()})
    if len(values) == 1:
        name, value = next(iter(values.items()))
        if name in _WITH_VALUE:
            return _WITH_VALUE[name](value)
    raise InvalidArgument(f"'{text.strip()}' is no rule: {_FORMS}")


def format_rule(rule: Rule) -> str:
    """Return a rule's text form."""
    match rule:
        case Tolerance():
            return f"absolute={rule.absolute:g} relative={rule.relative:g}"
        case Cosine():
            return f"cosine={rule.minimum:g}"
        case TopK():
            return f"top-k={rule.k}"
        case _:
            return next(name for name, plain in _PLAIN.items() if plain == rule)


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        raise InvalidArgument(f"{name} '{text}' is not a number from 0")
    return number


def _cosine(text: str) -> Rule:
    minimum = _number("cosine", text)
    if minimum > 1:
        raise InvalidArgument(f"cosine '{text}' is greater than 1")
    return Cosine(minimum)


def _top_k(text: str) -> Rule:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise InvalidArgument(f"top-k '{text}' is not a number from 1 to 999999")
    return TopK(int(text))


_PLAIN: Final[Mapping[str, Rule]] = {"exact": EXACT, "ignore": Ignore(), "text": Text()}
_WITH_VALUE: Final[Mapping[str, Callable[[str], Rule]]] = {"cosine": _cosine, "top-k": _top_k}
_FORMS: Final = (
    "exact, ignore, text, absolute=NUMBER and relative=NUMBER, cosine=MINIMUM, or top-k=NUMBER"
)
