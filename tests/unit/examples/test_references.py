"""The clients' checks: right responses pass, and each kind of wrong one does not."""

import numpy as np
import pytest

from examples.zoo import references

DIGITS = {"digit": np.array([3, 1, 4, 1]), "label": np.array([3, 1, 4, 7])}


def test_digits_served_as_offline_pass_even_where_the_model_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert references.check_digits(DIGITS, np.array([[3], [1], [4], [7]]))
    assert "accuracy served 0.7500, offline 0.7500, 0 labels differ" in capsys.readouterr().out


def test_digits_of_equal_accuracy_but_other_responses_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not references.check_digits(DIGITS, np.array([3, 1, 9, 1]))
    assert "served 0.7500, offline 0.7500, 2 labels differ" in capsys.readouterr().out


@pytest.mark.parametrize(("response", "right"), [(0.001, True), (0.00101, False), (np.nan, False)])
def test_resnet50_is_compared_with_its_output(response: float, right: bool) -> None:
    expected = {"softmax": np.full((1, 1000), 0.001, np.float32)}
    softmax = np.full((1, 1000), response, np.float32)
    assert references.check_resnet50(expected, softmax) is right


def test_minilm_is_compared_with_numpy_and_similarities_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    embedding = np.array([[1, 0], [0.6, 0.8]], np.float32)
    expected = {"sentences": np.array(["a cat", "a dog"]), "sentence_embedding": embedding}
    assert references.check_minilm(expected, embedding)
    assert '+0.600  "a cat" ~ "a dog"' in capsys.readouterr().out
    assert not references.check_minilm(expected, embedding[::-1])
