import pytest

from nereid.core.traffic.mismatches import find_mismatches
from nereid.core.traffic.weights import make_traffic
from nereid.model_config import parse_config

LATEST = (
    "version_policy keeps the latest version alone: the next one takes all requests when it is"
    " loaded"
)


@pytest.mark.parametrize(
    ("policy", "weights", "found"),
    [
        ("latest { num_versions: 1 }", {3: 1}, (LATEST,)),
        ("latest { num_versions: 2 }", {3: 1}, ()),
        ("all {}", {3: 1}, ()),
        ("specific { versions: 3 }", {3: 1}, ()),
    ],
)
def test_the_policy_keeps_versions_with_a_weight(
    policy: str, weights: dict[int, int], found: tuple[str, ...]
) -> None:
    config = parse_config(f"version_policy {{ {policy} }}", model_name="m")
    assert find_mismatches(make_traffic(weights), {3: ["x"]}, config) == found


def test_a_version_that_is_not_served_comes_first() -> None:
    config = parse_config("version_policy { latest { num_versions: 1 } }", model_name="m")
    (found,) = find_mismatches(make_traffic({3: 1, 4: 1}), {4: ["x"]}, config)
    assert found.startswith("version 3 has a weight but is not served (served: 4)")
