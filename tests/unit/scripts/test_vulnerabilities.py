"""Triton's vulnerabilities: each has tests that exist, and bulletins are read strictly."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts import vulnerabilities, vulnerability_reference
from scripts.vulnerabilities import (
    BulletinError,
    Vulnerability,
    add,
    main,
    read_bulletin,
    read_corpus,
    write_corpus,
)
from tests.support.hostile.attacks import ATTACKS

ROOT = Path(__file__).parents[3]
ROWS = read_corpus()
_HOSTILE = "tests/e2e/hostile/test_hostile_clients.py"
_NODE = re.compile(
    r"(?P<file>tests/[\w/]+\.py)::(Test\w+::)?(?P<name>test_\w+)(\[(?P<attack>.+)\])?"
)


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_has_its_tests_or_a_reason(row: Vulnerability) -> None:
    assert row.where
    assert row.held.endswith(".")
    if not row.tests:
        assert row.held.startswith("Nereid has no ")
    for node in (*row.tests, *([row.control] if row.control else [])):
        match = _NODE.fullmatch(node)
        assert match, node
        assert match["name"] in _functions(match["file"]), node
        if match["attack"]:
            assert match["file"] == _HOSTILE
            # CI runs it.
            (attack,) = [each for each in ATTACKS if each.name == match["attack"]]
            assert not attack.nightly, node
    # A row that refers to another one names one of the corpus.
    assert set(re.findall(r"CVE-\d+-\d+", row.held)) <= {each.id for each in ROWS} - {row.id}


def test_ids_are_unique_and_the_page_is_current() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    path = ROOT / "docs" / "reference" / "vulnerabilities.md"
    assert path.read_text() == vulnerability_reference.page(ROWS)


def bulletin(**changes: Any) -> dict[str, Any]:
    """A bulletin as NVIDIA publishes it, as far as it is read."""
    found = {
        "cve": "CVE-2030-10001",
        "cwe": {"id": "CWE-22", "name": "Path Traversal"},
        "scores": [{"cvss_v3": {"baseScore": 9.8}}],
    }
    about = {
        "category": "csaf_security_advisory",
        "csaf_version": "2.0",
        "title": "Security Bulletin: NVIDIA Triton Inference Server - May 2030",
        "tracking": {"id": "6001"},
    }
    return {"document": about, "vulnerabilities": [found]} | changes


def test_a_bulletin_adds_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, file = tmp_path / "corpus.toml", tmp_path / "6001.json"
    known = replace(ROWS[0], held='It says "no".\\')
    write_corpus([known], corpus)
    file.write_text(json.dumps(bulletin()))
    monkeypatch.setattr(sys, "argv", ["vulnerabilities.py", str(file)])
    for new in (1, 0):
        assert main(corpus) == 0
        assert f"{new} new, 2 vulnerabilities" in capsys.readouterr().out
    added = Vulnerability("CVE-2030-10001", ["6001"], "CWE-22", 9.8)
    assert read_corpus(corpus) == [known, added]
    # Another bulletin that repeats it.
    assert add(rows := read_corpus(corpus), [replace(added, bulletins=["6002"])]) == []
    assert rows[1].bulletins == ["6001", "6002"]
    # One bad file changes nothing.
    before = corpus.read_bytes()
    (tmp_path / "bad.json").write_text("[]")
    monkeypatch.setattr(sys, "argv", ["vulnerabilities.py", str(tmp_path / "bad.json")])
    assert main(corpus) == 2
    assert corpus.read_bytes() == before


def _about(**changes: Any) -> dict[str, Any]:
    return bulletin(document=bulletin()["document"] | changes)


def _found(**changes: Any) -> dict[str, Any]:
    return bulletin(vulnerabilities=[bulletin()["vulnerabilities"][0] | changes])


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        _about(category="csaf_vex"),
        _about(csaf_version="3.0"),
        _about(title="NVIDIA GPU Display Driver"),
        _about(tracking={"id": "../6001"}),
        _about(tracking={}),
        bulletin(vulnerabilities=[]),
        bulletin(vulnerabilities={}),
        bulletin(vulnerabilities=bulletin()["vulnerabilities"] * 2),
        _found(cve="CVE-2030-1; rm"),
        _found(cve=7),
        _found(cwe=None),
        _found(cwe={"id": "22"}),
        _found(scores=[]),
        _found(scores=[{"cvss_v3": {"baseScore": 11}}]),
        _found(scores=[{"cvss_v3": {"baseScore": "9"}}]),
        _found(scores=[{"cvss_v3": {"baseScore": True}}]),
    ],
)
def test_what_is_no_bulletin(document: object) -> None:
    with pytest.raises(BulletinError):
        read_bulletin(json.dumps(document))


def test_the_forms_of_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "corpus.toml"
    write_corpus(ROWS, path)
    assert path.read_bytes() == vulnerabilities.CORPUS.read_bytes()
