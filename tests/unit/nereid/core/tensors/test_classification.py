"""Classification parameters in heads, and label files."""

from pathlib import Path

import pytest

from nereid.core.errors import Internal
from nereid.core.tensors.classification import (
    Classification,
    read_labels,
    request_classification,
    requested_classifications,
)
from nereid.pb import kserve_pb2, model_config_pb2


@pytest.mark.parametrize(
    "wanted",
    [
        Classification(3),
        Classification(-1),
        Classification(1, ()),
        Classification(1, ("a",)),
        Classification(2, ("a", "", "b:c", "")),
        Classification(2, beside=True),
        Classification(2, ("é",), beside=True),
    ],
)
def test_a_classification_survives_the_head(wanted: Classification) -> None:
    request = kserve_pb2.ModelInferRequest()
    request_classification(request.outputs.add(name="y"), wanted)
    request.outputs.add(name="z")
    # An empty list of labels is read as one empty label.
    expected = wanted._replace(labels=("",)) if wanted.labels == () else wanted
    assert requested_classifications(request.outputs) == {"y": expected}


def test_the_first_mention_of_an_output_counts() -> None:
    request = kserve_pb2.ModelInferRequest()
    for most in (0, 2, 1):
        request_classification(request.outputs.add(name="y"), Classification(most))
    assert requested_classifications(request.outputs) == {"y": Classification(2)}


def test_labels_are_lines_and_a_missing_file_fails_the_load(tmp_path: Path) -> None:
    config = model_config_pb2.ModelConfig()
    config.output.add(name="x")
    config.output.add(name="y", label_filename="labels.txt")
    (tmp_path / "labels.txt").write_text("a\nb\n\nd")
    assert read_labels(config, tmp_path) == {"y": ("a", "b", "", "d")}
    (tmp_path / "labels.txt").unlink()
    with pytest.raises(Internal, match=r"failed to open text file for read .*labels\.txt: No such"):
        read_labels(config, tmp_path)
