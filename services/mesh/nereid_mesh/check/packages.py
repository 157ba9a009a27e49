"""Findings about packages of NoulXP: files that have changed, and recorded answers.

The model is not run. A conformance file is replayed against a mesh by whoever wants to.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.files.regular_files import open_regular_file, read_regular_file
from nereid.facts.findings import Finding, Severity
from nereid.text.documents import Document, parse_document
from nereid.text.questions import read_questions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.text.questions import Question

_FILES: Final = ("weights", "tokenizer", "template", "calibration", "conformance")
_CONFORMANCE: Final = "conformance"


def package_findings(manifest_path: Path) -> Iterator[Finding]:
    """Yield findings about the package with this manifest."""
    try:
        manifest = parse_document(manifest_path.name, read_regular_file(manifest_path))
        for key in _FILES:
            if manifest.has(key):
                entry = manifest.section(key)
                for file in (entry, *entry.sections("data")):
                    _check_file(manifest_path.parent, file)
        if not manifest.has(_CONFORMANCE):
            yield Finding(
                Severity.NOTE, "no-conformance", f"{manifest_path.name} names no recorded answers"
            )
            return
        _check_conformance(manifest_path.parent, manifest.section(_CONFORMANCE))
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        yield Finding(Severity.WARNING, "package", message)
    except InvalidArgument as error:
        yield Finding(Severity.WARNING, "package", error.message)


def _check_file(folder: Path, entry: Document) -> None:
    """Raise InvalidArgument or OSError unless a file is as it was when the package was made."""
    with open_regular_file(_path(folder, entry)) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.string("sha256"):
        raise entry.refuse("sha256", f"'{entry.string('path')}' has changed since it was written")


def _path(folder: Path, entry: Document) -> Path:
    path = PurePosixPath(entry.string("path"))
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise entry.refuse("path", "expected a path inside the package")
    return folder / path


def _check_conformance(folder: Path, entry: Document) -> None:
    content = read_regular_file(_path(folder, entry))
    name = entry.string("path")
    lines = [(at, line) for at, line in enumerate(content.splitlines(), 1) if line.strip()]
    for number, line in lines:
        _check_case(parse_document(f"{name}: line {number}", line))
    if len(lines) != entry.count("cases"):
        raise entry.refuse("cases", f"'{name}' has {len(lines)}")


def _check_case(case: Document) -> None:
    if not case.string("id"):
        raise case.refuse("id", "expected a text")
    if case.has("expected") == case.has("error"):
        raise InvalidArgument(f"{case.source}: expected either 'expected' or 'error'")
    if case.has("error"):
        # The recorded runtime may have refused questions of any form.
        return
    request = case.section("request")
    expected = case.section("expected")
    try:
        questions = read_questions(request.section("questions").values)
    except InvalidArgument as error:
        raise InvalidArgument(f"{request.source}: {error.message}") from None
    for name, question in zip(request.section("questions").values, questions, strict=True):
        _check_expected(expected.section(name), question)


def _check_expected(expected: Document, question: Question) -> None:
    names = [option.name for option in question.options]
    probabilities = expected.section("probabilities")
    if [*probabilities.values] != names:
        raise expected.refuse("probabilities", f"expected those of {', '.join(names)[:200]}")
    for name, value in probabilities.values.items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise probabilities.refuse(name, "expected a number from 0 to 1")
