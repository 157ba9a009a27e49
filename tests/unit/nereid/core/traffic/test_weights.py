"""Weights of versions: how they are read, and which version a key goes to."""

import json
from collections import Counter

import pytest

from nereid.core.traffic.caller_keys import key_of, request_key
from nereid.core.traffic.weights import (
    MAX_VERSIONS,
    Traffic,
    choose_version,
    make_traffic,
    parse_traffic,
    parse_weights,
)

KEYS = [key_of(b"caller %d" % number) for number in range(20_000)]


def chosen(*weights: tuple[int, int]) -> list[int]:
    return [choose_version("m", key, weights) for key in KEYS]


@pytest.mark.parametrize(
    "weights", [{1: 1, 2: 1}, {3: 90, 4: 10}, {1: 1, 2: 2, 9: 97}, {5: 1_000_000, 6: 10_000}]
)
def test_versions_get_their_shares_of_keys(weights: dict[int, int]) -> None:
    counts = Counter(chosen(*weights.items()))
    for version, weight in weights.items():
        share = weight / sum(weights.values())
        # Four standard deviations; the keys are always the same.
        assert abs(counts[version] / len(KEYS) - share) < 4 * (share / len(KEYS)) ** 0.5


def test_requests_on_their_own_get_their_shares() -> None:
    first = 0x1234_5678_9ABC
    counts = Counter(
        choose_version("m", request_key(first + number), [(1, 90), (2, 10)])
        for number in range(100_000)
    )
    assert abs(counts[2] / 100_000 - 0.1) < 0.01


@pytest.mark.parametrize("raised", [1, 2, 3])
def test_a_raised_weight_moves_keys_only_to_its_version(raised: int) -> None:
    weights = {1: 50, 2: 30, 3: 20}
    before, after = chosen(*weights.items()), chosen(*{**weights, raised: 60}.items())
    moved = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert moved
    assert {now for _, now in moved} == {raised}


def test_a_missing_version_moves_only_its_own_keys_in_proportion() -> None:
    before, after = chosen((1, 50), (2, 30), (3, 20)), chosen((1, 50), (2, 30))
    moved = Counter(now for was, now in zip(before, after, strict=True) if was != now)
    assert all(was in (3, now) for was, now in zip(before, after, strict=True))
    assert moved[1] / moved.total() == pytest.approx(50 / 80, abs=0.03)


def test_two_models_divide_callers_independently() -> None:
    weights = [(1, 1), (2, 1)]
    equal = sum(choose_version("m", k, weights) == choose_version("n", k, weights) for k in KEYS)
    assert equal / len(KEYS) == pytest.approx(0.5, abs=0.02)


def test_the_choice_is_the_same_in_every_release() -> None:
    # Gateways and schedulers of two releases serve one mesh during an upgrade.
    assert chosen((1, 50), (2, 50))[:16] == [1, 1, 1, 2, 2, 1, 1, 2, 1, 1, 2, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"weights": {"4": 10, "3": 90}}', Traffic(((3, 90), (4, 10)))),
        (
            '{"weights": {"3": 1, "4": 0}, "by": "principal"}',
            Traffic(((3, 1), (4, 0)), "principal"),
        ),
        ('{"weights": {"3": 1}, "by": "header:X-User"}', Traffic(((3, 1),), "header:x-user")),
        ('{"weights": {"3": 1}, "by": "tensor:A b"}', Traffic(((3, 1),), "tensor:A b")),
        ('{"weights": {"3": 1}, "by": "parameter:p"}', Traffic(((3, 1),), "parameter:p")),
        ('{"weights": {"3": 1}, "by": "sequence"}', Traffic(((3, 1),), "sequence")),
    ],
)
def test_traffic_is_read_and_written(text: str, expected: Traffic) -> None:
    traffic = parse_traffic(text)
    assert traffic == expected
    assert parse_traffic(json.dumps(traffic.document())) == traffic


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected JSON"),
        ("[" * 100_000, "not nested"),
        ("[]", "an object with weights"),
        ('{"weights": {"1": 1}, "key": "x"}', "an object with weights"),
        ('{"weights": {"1": 1}, "weights": {"2": 1}}', "a name occurs twice"),
        ("{}", "weights by version"),
        ('{"weights": [1]}', "weights by version"),
        ('{"weights": {"01": 1}}', "weights by version"),
        ('{"weights": {"-1": 1}}', "weights by version"),
        ('{"weights": {"9223372036854775808": 1}}', "numbers above 0"),
        ('{"weights": {}}', "1 to 64 versions"),
        ('{"weights": {"1": 0}}', "a weight above 0"),
        ('{"weights": {"1": -1}}', "integers from 0"),
        ('{"weights": {"1": 1.5}}', "integers from 0"),
        ('{"weights": {"1": true}}', "integers from 0"),
        ('{"weights": {"1": 1000001}}', "integers from 0"),
        ('{"weights": {"1": 1}, "by": ""}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": 3}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": "user"}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": "header"}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": "header:"}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": "principal:x"}', "expected by to be"),
        ('{"weights": {"1": 1}, "by": "header:a b"}', "no name of a header"),
        ('{"weights": {"1": 1}, "by": "tensor:\\n"}', "expected by to be"),
    ],
)
def test_wrong_traffic_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_traffic(text)


def test_weights_of_too_many_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="64 versions"):
        make_traffic(dict.fromkeys(range(1, MAX_VERSIONS + 2), 1))


def test_weights_on_a_command_line() -> None:
    assert parse_weights(["3=90", "4=0"]) == {3: 90, 4: 0}
    for texts in (["3"], ["3=-1"], ["3=90", "3=1"], ["x=1"], ["3=12345678"]):
        with pytest.raises(ValueError, match=r"VERSION=WEIGHT|two weights"):
            parse_weights(texts)


def test_traffic_is_shown_as_it_is_given_on_a_command_line() -> None:
    assert str(make_traffic({4: 10, 3: 90})) == "3=90 4=10"
    traffic = make_traffic({3: 90}, "header:X-User")
    assert str(traffic) == "3=90 by header:x-user"
    assert (traffic.kind, traffic.name, traffic.is_keyed_by_gateway) == ("header", "x-user", True)
