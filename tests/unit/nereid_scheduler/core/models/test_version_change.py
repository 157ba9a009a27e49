"""Changes of the versions in service."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.pb import kserve_pb2
from nereid_scheduler.core.models.overrides import read_override
from nereid_scheduler.core.models.version_change import VersionChange, read_version


def request(**parameters: object) -> kserve_pb2.RepositoryModelLoadRequest:
    made = kserve_pb2.RepositoryModelLoadRequest(model_name="m")
    for name, value in parameters.items():
        kind = {str: "string_param", int: "int64_param", bytes: "bytes_param"}[type(value)]
        setattr(made.parameters[name], kind, value)
    return made


@pytest.mark.parametrize(
    ("version", "is_added", "in_service", "expected"),
    [
        (1, True, [], (1,)),
        (1, True, [3, 2], (1, 2, 3)),
        (2, True, [2], (2,)),
        (2, False, [3, 2], (3,)),
        (2, False, [3], (3,)),
        (2, False, [2], ()),
    ],
)
def test_a_version_is_added_or_removed(
    version: int, in_service: list[int], expected: tuple[int, ...], *, is_added: bool
) -> None:
    assert VersionChange(version, is_added).apply(in_service) == expected


@pytest.mark.parametrize(
    ("parameters", "version"),
    [({}, None), ({"version": "0"}, 0), ({"version": "12"}, 12), ({"version": 7}, 7)],
)
def test_the_version_of_a_request(parameters: dict[str, object], version: int | None) -> None:
    made = request(**parameters).parameters
    assert read_version(made) == version
    assert read_override(made) is None


@pytest.mark.parametrize("value", ["", "x", "01", "-1", -1, b"1", "٣"])
def test_what_is_no_version_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="expected the number of a version"):
        read_version(request(version=value).parameters)


@pytest.mark.parametrize("other", [{"config": "{}"}, {"file:1/model.onnx": b""}])
def test_a_version_comes_alone(other: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="cannot be combined with a configuration or files"):
        read_override(request(version="1", **other).parameters)
