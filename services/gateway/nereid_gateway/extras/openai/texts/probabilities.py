"""Calibrated probabilities of a question's options, and how certain they are."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import numpy as np

from nereid.core.errors import Internal
from nereid.text.decisions import PairRows
from nereid.text.questions import PREDICATE
from nereid_gateway.extras.openai.texts.outputs import activated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nereid.text.decisions import Calibration, DecisionMapping
    from nereid.text.questions import Question

    Values = NDArray[np.float64]

# Log-odds of 0 and 1 are infinite.
_LEAST = 1e-12


def option_probabilities(
    question: Question, outputs: Sequence[Values], decisions: DecisionMapping
) -> list[float]:
    """Return the probability of each option, from the output of each of the question's rows.

    Raises Internal for outputs that are none of the model's mapping.
    """
    rows = decisions.rows
    arrays = [output.reshape(-1) for output in outputs]
    if isinstance(rows, PairRows):
        if question.type == PREDICATE:
            logits = np.array([0.0, _margin(arrays[0], rows)])
        else:
            logits = np.array([_logit(array, rows.label) for array in arrays])
    else:
        (logits,) = arrays
        count = len(question.options)
        if len(logits) < count:
            raise Internal(f"the model returned {len(logits)} scores for {count} options")
        logits = logits[:count]
    if not np.isfinite(logits).all():
        raise Internal("the model returned scores that are not finite")
    probabilities: list[float] = _calibrated(
        question, logits, decisions.calibration(question)
    ).tolist()
    return probabilities


def _logit(array: Values, index: int) -> float:
    if index >= len(array):
        raise Internal(f"the model returned {len(array)} scores, so there is none of label {index}")
    return float(array[index])


def _margin(array: Values, rows: PairRows) -> float:
    """Return the log-odds that a statement holds."""
    own = _logit(array, rows.label)
    if rows.contrary is not None:
        return own - _logit(array, rows.contrary)
    others = np.delete(array, rows.label)
    return own if not others.size else own - float(np.logaddexp.reduce(others))


def _calibrated(question: Question, logits: Values, calibration: Calibration) -> Values:
    values = activated(logits / calibration.temperature, "softmax")
    if calibration.platt is None and calibration.isotonic is None:
        return values
    # The second option of a predicate is true.
    changed = values[1:] if question.type == PREDICATE else values
    if calibration.platt is not None:
        slope, offset = calibration.platt
        bounded = np.clip(changed, _LEAST, 1 - _LEAST)
        changed = activated(slope * np.log(bounded / (1 - bounded)) + offset, "sigmoid")
    elif calibration.isotonic is not None:
        changed = np.interp(changed, *calibration.isotonic)
    if question.type == PREDICATE:
        return np.array([1 - changed[0], changed[0]])
    total = changed.sum()
    if total <= 0:
        return np.full(len(changed), 1 / len(changed))
    normalized: Values = changed / total
    return normalized


def confidence(rule: str, values: Sequence[float]) -> float | None:
    """Return how certain probabilities are, by a rule of NoulXP; None for the rule "none"."""
    count = len(values)
    best = most_probable(values)
    match rule:
        case "max-probability":
            return values[best]
        case "entropy":
            entropy = -sum(value * log(max(value, _LEAST)) for value in values)
            certain = 1 - entropy / log(count)
        case "typesafe":
            certain = (count * values[best] - 1) / (count - 1)
        case "typesafe-ordinal":
            spread = sum(value * abs(index - best) for index, value in enumerate(values))
            uniform = sum(abs(index - (count - 1) / 2) for index in range(count)) / count
            certain = 1 - spread / uniform
        case _:
            return None
    return min(max(certain, 0.0), 1.0)


def most_probable(values: Sequence[float]) -> int:
    """Return the index of the most probable option, the first of equal ones."""
    return max(range(len(values)), key=values.__getitem__)


def expected_level(values: Sequence[float]) -> float:
    """Return the mean of levels' indices, by their probabilities."""
    return sum(index * value for index, value in enumerate(values))
