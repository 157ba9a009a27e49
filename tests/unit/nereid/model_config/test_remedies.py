"""What stands in the log beside a load's error."""

from __future__ import annotations

from nereid.model_config.remedies import with_remedy


def test_an_error_with_its_remedy() -> None:
    error = "Internal: failed to open text file for read /m/labels.txt: No such file\n"
    assert with_remedy(error) == (
        "Internal: failed to open text file for read /m/labels.txt: No such file"
        " (add /m/labels.txt, or take it out of the configuration)"
    )


def test_an_error_that_says_all() -> None:
    assert with_remedy("no room") == "no room"


def test_the_default_export_of_skl2onnx() -> None:
    error = (
        "unable to load model 'zipped', unsupported datatype 'seq(map(int64,tensor(float)))' for"
        " output 'output_probability'"
    )
    assert 'options={"zipmap": False}' in with_remedy(error)
