"""Probabilities of logits, and rules of confidence beside NoulXP's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noulxp import answers

from nereid.core.errors import Internal
from nereid.text.decisions import (
    CONFIDENCE_RULES,
    Calibration,
    DecisionMapping,
    PairRows,
)
from nereid.text.questions import CHOICE, PREDICATE, SCORE, Option, Question, predicate
from nereid_gateway.extras.openai.texts.probabilities import (
    confidence,
    expected_level,
    most_probable,
    option_probabilities,
)
from tests.support.models import decision_models

LOGITS = st.lists(st.floats(-20, 20), min_size=2, max_size=9)


def question(kind: str, count: int = 2) -> Question:
    return Question("q", kind, "", tuple(Option(str(index)) for index in range(count)))


def pairs(*calibrations: Calibration, **rows: Any) -> DecisionMapping:
    return DecisionMapping(PairRows(**rows), calibrations)


def arrays(*rows: list[float]) -> list[Any]:
    return [np.array([row], np.float64) for row in rows]


@settings(max_examples=30)
@given(values=LOGITS)
@pytest.mark.parametrize("rule", CONFIDENCE_RULES)
def test_confidence_is_that_of_the_package(rule: str, values: list[float]) -> None:
    probabilities = answers.softmax(values)
    expected = answers.confidence(rule, probabilities)
    found = confidence(rule, probabilities)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found == pytest.approx(expected)
    assert most_probable(probabilities) == answers.argmax(probabilities)


def test_a_predicate_of_a_ranker_is_the_sigmoid_of_its_score() -> None:
    false, true = option_probabilities(predicate("q", ""), arrays([1.5]), pairs())
    assert (true, false) == pytest.approx((1 / (1 + np.exp(-1.5)), 1 / (1 + np.exp(1.5))))


def test_a_predicate_stands_against_the_contrary_or_all_other_labels() -> None:
    logits = arrays([0.5, 2.0, 1.0])
    _, against_one = option_probabilities(predicate("q", ""), logits, pairs(label=2, contrary=0))
    _, against_all = option_probabilities(predicate("q", ""), logits, pairs(label=2))
    assert against_one == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert against_all == pytest.approx(answers.softmax([0.5, 2.0, 1.0])[2])


def test_temperatures_are_chosen_by_type_and_number_of_options() -> None:
    rules = Calibration(CHOICE, 3, 4, temperature=2.0), Calibration(CHOICE, temperature=0.5)
    for count, temperature in ((2, 0.5), (3, 2.0), (4, 2.0), (5, 0.5)):
        logits = [float(index) for index in range(count)]
        found = option_probabilities(
            question(CHOICE, count), arrays(*([each] for each in logits)), pairs(*rules)
        )
        assert found == pytest.approx(answers.softmax(logits, temperature))
    found = option_probabilities(question(SCORE), arrays([0.0], [1.0]), pairs(*rules))
    assert found == pytest.approx(answers.softmax([0.0, 1.0]))


def test_platts_scaling_of_a_predicate_changes_its_log_odds() -> None:
    rule = Calibration(PREDICATE, platt=(0.5, -1.0))
    false, true = option_probabilities(predicate("q", ""), arrays([3.0]), pairs(rule))
    assert true == pytest.approx(1 / (1 + np.exp(-(0.5 * 3.0 - 1.0))))
    assert false + true == pytest.approx(1)


def test_other_scalings_of_choices_are_normalized() -> None:
    curve = (0.0, 0.5, 1.0), (0.0, 0.1, 1.0)
    logits = [2.0, 1.0, 0.0]
    plain = np.array(answers.softmax(logits))
    bent = np.interp(plain, *curve)
    found = option_probabilities(
        question(CHOICE, 3),
        arrays(*([each] for each in logits)),
        pairs(Calibration(CHOICE, isotonic=curve)),
    )
    assert found == pytest.approx(bent / bent.sum())
    moved = 1 / (1 + np.exp(-(2 * np.log(plain / (1 - plain)) + 1)))
    found = option_probabilities(
        question(CHOICE, 3),
        arrays(*([each] for each in logits)),
        pairs(Calibration(CHOICE, platt=(2.0, 1.0))),
    )
    assert found == pytest.approx(moved / moved.sum())


@pytest.mark.parametrize(
    "rule",
    [
        Calibration(CHOICE, platt=(-1e6, -1e6)),
        Calibration(CHOICE, isotonic=((0.0, 1.0), (0.0, 0.0))),
        Calibration(CHOICE, temperature=1e-9),
    ],
)
def test_extreme_calibrations_give_probabilities(rule: Calibration) -> None:
    found = option_probabilities(question(CHOICE), arrays([9.0], [-9.0]), pairs(rule))
    assert sum(found) == pytest.approx(1)
    assert all(0 <= value <= 1 for value in found)


@pytest.mark.parametrize("outputs", [[], [float("nan")], [float("inf")]])
def test_outputs_that_are_no_scores_are_errors(outputs: list[float]) -> None:
    with pytest.raises(Internal, match="the model returned"):
        option_probabilities(predicate("q", ""), arrays(outputs), pairs())


def test_scores_of_padded_options_are_left_out() -> None:
    decisions = decision_models.package_model({}).mapping.decisions
    assert decisions is not None
    found = option_probabilities(question(CHOICE), arrays([0.0, 1.3, 99.0]), decisions)
    assert found == pytest.approx(answers.softmax([0.0, 1.0]))
    with pytest.raises(Internal, match="2 scores for 3 options"):
        option_probabilities(question(CHOICE, 3), arrays([0.0, 1.0]), decisions)


def test_the_expected_level_is_a_mean() -> None:
    assert expected_level([0.25, 0.25, 0.5]) == 1.25
