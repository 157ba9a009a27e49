"""--backends."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid_scheduler.core.models.allowed_backends import ALL_BACKENDS, AllowedBackends


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("", ["python", "anything"], []),
        ("onnxruntime, openvino", ["onnxruntime", "openvino"], ["python", "-python"]),
        ("-python,-pytorch", ["onnxruntime"], ["python", "pytorch"]),
    ],
)
def test_which_backends_are_allowed(text: str, allowed: list[str], refused: list[str]) -> None:
    backends = AllowedBackends.parse(text)
    for name in allowed:
        backends.require(name, "m")
    for name in refused:
        with pytest.raises(InvalidArgument, match="--backends"):
            backends.require(name, "m")
    # As it is written on a child's command line.
    assert AllowedBackends.parse(str(backends)) == backends


@pytest.mark.parametrize("text", ["python,-onnxruntime", "-"])
def test_names_to_allow_and_to_exclude_do_not_mix(text: str) -> None:
    with pytest.raises(ValueError, match="expected names"):
        AllowedBackends.parse(text)


def test_all_are_written_as_nothing() -> None:
    assert str(ALL_BACKENDS) == ""
