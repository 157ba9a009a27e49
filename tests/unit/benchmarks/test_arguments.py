"""The command line: which peers take part, and with what flags."""

import pytest

from benchmarks.__main__ import _arguments
from benchmarks.models import registry


def test_defaults() -> None:
    found = _arguments([])
    assert found.peers == ["nereid", "triton", "mlserver", "litserve", "bare"]
    assert found.model == ["mlp"]
    assert found.seconds is None


def test_variants_are_peers_of_their_own() -> None:
    found = _arguments(["--nereid-variant", "join-all=--join all", "--without", "triton"])
    assert found.peers == ["nereid", "nereid-join-all", "mlserver", "litserve", "bare"]
    assert found.nereid_variant == [("nereid-join-all", ["--join", "all"])]
    only = _arguments(["--nereid-variant", "x=", "--only", "nereid-x", "--only", "bare"])
    assert only.peers == ["nereid-x", "bare"]


def test_lists() -> None:
    found = _arguments(["--model", "all", "--concurrency", "16,64"])
    assert found.model == list(registry.NAMES)
    assert found.concurrency == [16, 64]


@pytest.mark.parametrize(
    "given",
    [
        ["--only", "nereid-x"],
        ["--without", "x"],
        ["--nereid-variant", "x"],
        ["--nereid-variant", "a b=--x"],
        ["--model", "mlp,x"],
        ["--concurrency", "1,,2"],
        ["--concurrency", "0"],
        ["--seconds", "0"],
        ["--rounds", "0"],
    ],
    ids=" ".join,
)
def test_mistakes(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        _arguments(given)
