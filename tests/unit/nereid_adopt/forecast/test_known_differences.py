from pathlib import Path

import pytest

from nereid_adopt.forecast.known_differences import KNOWN_DIFFERENCES, explain

_DOCUMENT = Path(__file__).parents[4] / "docs" / "compatibility.md"


@pytest.mark.parametrize("known", KNOWN_DIFFERENCES, ids=lambda known: known.title)
def test_each_known_difference_is_documented(known: object) -> None:
    text = " ".join(_DOCUMENT.read_text().split())
    assert f"**{getattr(known, 'title', '')}" in text


def test_differences_are_explained_by_kind_and_text() -> None:
    text = "400 -> success: unexpected number of string elements 2 for inference input 'CORRID'"
    title = "A text of any length fits a control tensor"
    assert explain("status", "", text) == title
    assert explain("error text", "", text) == ""
    assert explain("status", "", "400 -> success: other") == ""


@pytest.mark.parametrize(
    ("config", "titles"),
    [
        ({"backend": "onnxruntime"}, 0),
        ({"backend": "python"}, 3),
        ({"ensemble_scheduling": {"step": [{}]}, "input": [{"optional": True}]}, 2),
        ({"ensemble_scheduling": {"step": [{}]}, "output": [{"label_filename": "l"}]}, 3),
        ({"response_cache": {"enable": True}}, 1),
        (
            {"sequence_batching": {"control_input": [{"control": [{"data_type": "TYPE_STRING"}]}]}},
            1,
        ),
    ],
)
def test_models_are_concerned_by_their_configuration(
    config: dict[str, object], titles: int
) -> None:
    assert sum(known.concerns(config) for known in KNOWN_DIFFERENCES) == titles
