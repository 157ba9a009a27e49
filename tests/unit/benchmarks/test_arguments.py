"""The command line: which peers take part, and with what flags."""

from pathlib import Path

import pytest

from benchmarks.__main__ import _arguments
from benchmarks.models import registry
from benchmarks.peers.nereid import Variant

ROOT = Path(__file__).parents[3].resolve()


@pytest.fixture(autouse=True)
def _no_native_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEREID_NATIVE_TRITON", raising=False)


def test_defaults() -> None:
    found = _arguments([])
    assert found.peers == ["nereid", "triton", "mlserver", "litserve", "bare"]
    assert found.model == ["mlp"]
    assert found.seconds is None


def test_native_triton_takes_part_where_its_script_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEREID_NATIVE_TRITON", "/opt/start")
    assert _arguments([]).peers[:3] == ["nereid", "triton-native", "triton"]
    assert "triton-native" not in _arguments(["--without", "triton-native"]).peers


def test_variants_are_peers_of_their_own() -> None:
    found = _arguments(["--nereid-variant", "join-all=--join all", "--without", "triton"])
    assert found.peers == ["nereid", "nereid-join-all", "mlserver", "litserve", "bare"]
    assert found.variants["nereid-join-all"] == Variant(["--join", "all"])
    only = _arguments(["--nereid-variant", "x=", "--only", "nereid-x", "--only", "bare"])
    assert only.peers == ["nereid-x", "bare"]


def test_a_variant_may_run_from_a_tree_of_its_own() -> None:
    given = ["--nereid-tree", f"compiled={ROOT}", "--nereid-tree", f"both={ROOT}"]
    found = _arguments([*given, "--nereid-variant", "both=--join all", "--nereid-flags=--x"])
    assert found.variants == {
        "nereid": Variant(["--x"]),
        "nereid-both": Variant(["--x", "--join", "all"], ROOT),
        "nereid-compiled": Variant(["--x"], ROOT),
    }
    assert found.peers[:4] == ["nereid", "nereid-both", "nereid-compiled", "triton"]


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
        ["--nereid-tree", "x"],
        ["--nereid-tree", "x=/nowhere"],
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
