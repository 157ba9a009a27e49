"""version_policy."""

from __future__ import annotations

import pytest

from nereid.model_config import parse_config, select_versions


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", (10,)),
        ("version_policy { }", (10,)),
        ("version_policy { latest { num_versions: 1 } }", (10,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 10)),
        ("version_policy { latest { num_versions: 9 } }", (1, 3, 10)),
        ("version_policy { latest { } }", ()),
        ("version_policy { all { } }", (1, 3, 10)),
        ("version_policy { specific { versions: [ 10, 1, 1, 7 ] } }", (1, 10)),
    ],
)
def test_a_policy_selects(policy: str, expected: tuple[int, ...]) -> None:
    config = parse_config(policy, model_name="m")
    assert select_versions(config.version_policy, [3, 10, 1]) == expected


def test_of_nothing_nothing_is_selected() -> None:
    assert select_versions(parse_config("", model_name="m").version_policy, []) == ()
