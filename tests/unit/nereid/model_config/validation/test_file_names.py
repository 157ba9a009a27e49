"""A configuration's file names, and the model's folder."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.model_config import parse_config
from nereid.model_config.validation.file_names import is_inside, validate_file_names


@pytest.mark.parametrize("name", ["", "labels.txt", "a/b.txt", "./a", "a..b", "..."])
def test_names_in_the_folder(name: str) -> None:
    assert is_inside(name)


@pytest.mark.parametrize("name", ["/etc/passwd", "..", "../x", "a/../../x", "a/..", "a\0b"])
def test_names_that_lead_elsewhere(name: str) -> None:
    assert not is_inside(name)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("default_model_filename", 'default_model_filename: "{}"'),
        ("cc_model_filenames", 'cc_model_filenames {{ key: "7.5" value: "{}" }}'),
        ("op_library_filename", 'model_operations {{ op_library_filename: "{}" }}'),
        (
            "input_data_file",
            'model_warmup {{ name: "w" inputs {{ key: "x" value {{ input_data_file: "{}" }} }} }}',
        ),
        (
            "data_file",
            'sequence_batching {{ state {{ initial_state {{ data_file: "{}" }} }} }}',
        ),
    ],
)
def test_every_name_is_checked(field: str, text: str) -> None:
    validate_file_names(parse_config(text.format("here.bin"), model_name="m"))
    with pytest.raises(InvalidArgument) as caught:
        validate_file_names(parse_config(text.format("../there.bin"), model_name="m"))
    assert caught.value.message == (
        f"{field} '../there.bin' of model '' must stay within the model's directory"
    )


def test_label_files_are_refused_as_by_triton() -> None:
    text = 'output {{ name: "x" }} output {{ name: "y" label_filename: "{}" }}'
    validate_file_names(parse_config(text.format("here.txt"), model_name="m"))
    config = parse_config('name: "m" ' + text.format("../there.txt"), model_name="m")
    with pytest.raises(Unimplemented) as caught:
        validate_file_names(config)
    assert caught.value.message == (
        "label file path '../there.txt' for output 'y' in model 'm' is outside model directory"
    )
