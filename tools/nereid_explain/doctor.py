"""The command `nereid doctor`. Exit codes: 0 nothing found, 1 findings, 2 no response."""

from __future__ import annotations

import json
import textwrap
import time
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from nereid.cli.command_parser import CommandParser
from nereid.core.terminal import print_error, print_lines
from nereid.diagnosis.causes import diagnose
from nereid.diagnosis.snapshot import snapshot_of
from nereid.facts.mesh_facts import MeshFacts, VersionFacts
from nereid.observability.samples import Samples
from nereid_explain.server import (
    CannotAskError,
    add_metrics_argument,
    add_server_arguments,
    record_for,
    server_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nereid.diagnosis.causes import Diagnosis
    from nereid.diagnosis.snapshot import Snapshot
    from nereid_explain.server import Server

SUMMARY: Final = "say why a running mesh's models are slow, and what would help"
# The version stays if fields are added; no field is changed or removed.
FORMAT: Final = "nereid.doctor/1"
_PROGRAM = "nereid doctor"
_DESCRIPTION = """\
Look at a running mesh for some seconds, and say for each model that has requests why it is slow:
the cause with its figures, a remedy to paste, what it would bring, and the command that measures
it. The first cause explains most of the time.
"""
_EPILOG = """\
exit codes: 0: nothing was found; 1: there are findings; 2: the mesh could not be asked. With --json
the output is one document, which docs/operators/doctor.md describes.
"""
_WIDTH: Final = 100
_SECONDS: Final = 10.0
_MAX_SECONDS: Final = 3600.0
_INDENT: Final = " " * 4

# A version's figures, and the causes that were found in them.
Checked = tuple["Snapshot", "list[Diagnosis]"]


def main(argv: Sequence[str]) -> int:
    """Look at the mesh twice, print the findings, and return the exit code."""
    parser = make_parser()
    given = parser.parse_args(argv)
    if not 0 < given.seconds <= _MAX_SECONDS:
        parser.error(f"--seconds: expected more than 0, and at most {_MAX_SECONDS:g}")
    server = server_of(parser, given, given.metrics_url)
    try:
        before, began_s = server.samples(), time.monotonic()
        record_for(_PROGRAM, given.seconds)
        now, seconds = server.samples(), time.monotonic() - began_s
        checked = [*_checked(server, frozenset(given.model), (before, now), seconds)]
    except (CannotAskError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2
    if given.json:
        print(json.dumps(_document(checked, seconds), indent=1))
    else:
        print_lines(_lines(checked, seconds))
    return 1 if any(found for _, found in checked) else 0


def _checked(
    server: Server, models: frozenset[str], samples: tuple[Samples, Samples], seconds: float
) -> Iterator[Checked]:
    entries = server.index()
    names = sorted({str(entry.get("name", "")) for entry in entries})
    for model in sorted(models.difference(names)):
        near = get_close_matches(model, names, n=1)
        hint = f": did you mean '{near[0]}'?" if near else ""
        raise CannotAskError(f"no repository of this mesh has a model '{model}'{hint}")
    before, now = (each.split("model", "version") for each in samples)
    for entry in entries:
        model = str(entry.get("name", ""))
        if models and model not in models:
            continue
        version = VersionFacts(
            str(entry.get("version", "")), str(entry.get("state", "")), str(entry.get("reason", ""))
        )
        key = model, version.number
        facts = _facts(model, version, now, key, _facts(model, version, before, key))
        snapshot = snapshot_of(facts, version, seconds)
        if version.in_memory and not (snapshot.idle and snapshot.instances[1]):
            config = server.config(model, version.number)
            snapshot = replace(snapshot, config=config)
        yield snapshot, diagnose(snapshot)


def _facts(
    model: str,
    version: VersionFacts,
    parts: Mapping[tuple[str, ...], Samples],
    key: tuple[str, ...],
    earlier: MeshFacts | None = None,
) -> MeshFacts:
    """Return facts with the samples of one version and of the mesh alone, which are read often."""
    samples = Samples.joined(*(parts[each] for each in ((), key) if each in parts))
    return MeshFacts(model, True, (version,), metrics=samples, earlier=earlier)


def _lines(checked: Sequence[Checked], seconds: float) -> Iterator[str]:
    versions: dict[str, int] = {}
    for snapshot, _ in checked:
        versions[snapshot.model] = versions.get(snapshot.model, 0) + 1
    idle = 0
    for snapshot, found in checked:
        name = snapshot.model
        if versions[name] > 1:
            name += f" version {snapshot.version}"
        if not found and snapshot.idle:
            idle += 1
        elif not found:
            rate = snapshot.requests / snapshot.seconds
            took_ms = snapshot.mean_request_us / 1000
            yield f"{name}: ok: {rate:.1f} requests/s, {took_ms:.2f} ms each"
        for diagnosis in found:
            yield from _wrapped(f"{name}: {diagnosis.evidence}", "")
            yield from _wrapped(diagnosis.advised(), _INDENT)
    if idle:
        what = "version" if idle == 1 else "versions"
        yield f"{idle} {what} had no requests in these {seconds:.1f} s"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent or _INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _document(checked: Sequence[Checked], seconds: float) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "seconds": round(seconds, 3),
        "findings": any(found for _, found in checked),
        "versions": [
            {
                "model": snapshot.model,
                "version": snapshot.version,
                "idle": snapshot.idle,
                "requests": snapshot.requests,
                "mean_request_us": round(snapshot.mean_request_us, 1),
                "diagnoses": [diagnosis.document() for diagnosis in found],
            }
            for snapshot, found in checked
        ],
    }


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add(
        "-m", "--model", action="append", default=[], metavar="NAME",
        help="look at this model alone; may be repeated (default: all models)",
    )  # fmt: skip
    add_server_arguments(parser, timeout_s=10)
    add_metrics_argument(parser)
    add(
        "--seconds", type=float, default=_SECONDS, metavar="S",
        help=f"how long to look (default: {_SECONDS:g})",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")
    return parser
