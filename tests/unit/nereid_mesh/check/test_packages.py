"""Findings of `nereid check` about packages of decisions."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from nereid.facts.findings import Severity
from nereid_mesh.check.packages import package_findings
from tests.support.models import decision_models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decision_models.write_package(tmp_path_factory.mktemp("packages") / "toy")


def messages(folder: Path) -> list[str]:
    found = list(package_findings(folder / "noulxp.json"))
    assert {finding.severity for finding in found} <= {Severity.WARNING, Severity.NOTE}
    return [finding.message for finding in found]


def test_a_package_as_its_tools_write_it_has_no_findings(package: Path) -> None:
    assert messages(package) == []


def copied(package: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy whose manifest has a change."""
    for path in package.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((folder / "noulxp.json").read_text())
    change(manifest)
    (folder / "noulxp.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda it: it.pop("conformance"), "noulxp.json names no recorded answers"),
        (
            lambda it: it["weights"].update(sha256="0"),
            "noulxp.json: weights: sha256: 'model.onnx' has changed since it was written",
        ),
        (
            lambda it: it["weights"].update(data=[{"path": "../x"}]),
            "noulxp.json: weights: data: 0: path: expected a path inside the package",
        ),
        (
            lambda it: it["weights"].update(data=[1]),
            "noulxp.json: weights: data: 0: expected an object",
        ),
        (
            lambda it: it["conformance"].update(cases=3),
            "noulxp.json: conformance: cases: 'conformance.jsonl' has 52",
        ),
        (lambda it: it.update(tokenizer=1), "noulxp.json: tokenizer: expected an object"),
    ],
)
def test_a_manifest_that_is_wrong_is_named(
    package: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    assert messages(copied(package, tmp_path, change)) == [text]


CASE: dict[str, Any] = {
    "id": "r1",
    "request": {"questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}},
    "expected": {"q": {"probabilities": {"a": 0.5, "b": 0.5}}},
}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (CASE, ""),
        ({"id": "r1", "request": {}, "error": {"message": ""}}, ""),
        (CASE | {"id": ""}, "id: expected a text"),
        (CASE | {"error": {}}, "expected either 'expected' or 'error'"),
        (CASE | {"request": {}}, "request: questions: expected at least one"),
        (CASE | {"expected": {"x": 1}}, "expected: q: probabilities: expected those of a, b"),
        (
            CASE | {"expected": {"q": {"probabilities": {"b": 0.5, "a": 0.5}}}},
            "expected: q: probabilities: expected those of a, b",
        ),
        (
            CASE | {"expected": {"q": {"probabilities": {"a": 0.5, "b": 1.5}}}},
            "expected: q: probabilities: b: expected a number from 0 to 1",
        ),
    ],
)
def test_recorded_results_have_the_form_of_the_standard(
    package: Path, tmp_path: Path, case: dict[str, Any], text: str
) -> None:
    content = json.dumps(case).encode()
    digest = hashlib.sha256(content).hexdigest()
    folder = copied(package, tmp_path, lambda it: it["conformance"].update(sha256=digest, cases=1))
    (folder / "conformance.jsonl").write_bytes(content)
    expected = [f"conformance.jsonl: line 1: {text}"] if text else []
    assert messages(folder) == expected


def test_a_file_that_is_missing_is_named(package: Path, tmp_path: Path) -> None:
    folder = copied(package, tmp_path, dict)
    (folder / "model.onnx").unlink()
    (message,) = messages(folder)
    assert message == f"{folder / 'model.onnx'}: No such file or directory"
