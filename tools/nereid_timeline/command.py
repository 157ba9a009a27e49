"""The command `nereid timeline`. Exit codes: 0 nothing wrong, 1 problems, 2 no timeline."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nereid.cli.command_parser import CommandParser
from nereid.core.files import json_document
from nereid.core.files.json_document import parse_document
from nereid.core.terminal import print_error, print_lines
from nereid.timeline import PATH
from nereid.timeline.wire import CONTENT_TYPE, MAX_BYTES, TimelineError, read_timeline
from nereid_explain.server import CannotAskError, add_server_arguments, record_for, server_of
from nereid_timeline.chrome import chrome
from nereid_timeline.joined import Joined, joined, latest, model_name
from nereid_timeline.of_models import of_models
from nereid_timeline.one_request import within_lifetime
from nereid_timeline.perfetto import perfetto
from nereid_timeline.summary import SlowRequest, Summary, request_summary, summarized
from nereid_timeline.tracks import laid_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nereid_explain.server import Server
    from nereid_timeline.joined import Model

SUMMARY: Final = "say where the last seconds of a running mesh went, and write them as a trace"
# The version stays if fields are added; no field is changed or removed.
FORMAT: Final = "nereid.timeline/1"
_PROGRAM = "nereid timeline"
_DESCRIPTION = """\
Say where the time of a running mesh's requests went in the last seconds: what instances were idle
for, how full batches were, where p99 comes from, the slowest requests step by step, and what is
wrong. With -o also write all of it as a trace, for ui.perfetto.dev.
"""
_EPILOG = """\
exit codes: 0: nothing is wrong; 1: there are problems; 2: there is no timeline. With --json the
output is one document, which docs/operators/timeline.md describes.
"""
_WIDTH: Final = 100
_SECONDS: Final = 5.0
# Maximum number of models whose configurations the command asks for.
_MAX_MODELS: Final = 50
# More seconds than any service keeps records.
_ALL_SECONDS: Final = 100_000.0
_UNKNOWN: Final = (
    "no request {number} among the {seconds:.1f} s that were recorded: numbers are those of the"
    " slowest requests; if it is older, ask sooner, or start the mesh with a longer"
    " --timeline-seconds; if it has only just ended, ask again"
)


def main(argv: Sequence[str]) -> int:
    """Get a timeline from the mesh or a file, print and write it, and return the exit code."""
    parser = make_parser()
    given = parser.parse_args(argv)
    server = None if given.file else server_of(parser, given)
    try:
        if server is None:
            data = _read(Path(given.file))
        else:
            last = given.last
            if given.request is not None and given.seconds is None:
                last = last or _ALL_SECONDS
            data = _recorded(server, given.seconds, last)
        timeline = read_timeline(data)
        if given.file and given.last:
            latest(timeline, int(given.last * 1e9))
        whole = joined(timeline)
        if given.model:
            whole = of_models(whole, frozenset(given.model))
        whole, summary = _understood(whole, given.request, server)
    except (CannotAskError, TimelineError, OSError) as error:
        print_error(_PROGRAM, error)
        return 2
    try:
        if given.raw:
            _write(Path(given.raw), [data])
        if given.output:
            _write(Path(given.output), _trace(whole, given.format))
    except OSError as error:
        print_error(_PROGRAM, error)
        return 2
    if given.json:
        print(json.dumps(_document(whole, summary), indent=1))
    else:
        title = "the slowest requests" if given.request is None else f"request {given.request}"
        print_lines(_lines(summary, title))
    return 1 if summary.problems else 0


def _understood(whole: Joined, number: int | None, server: Server | None) -> tuple[Joined, Summary]:
    """Return the part of a timeline to write, and its summary; `None` means all requests."""
    if number is None:
        sizes = {} if server is None else _max_batch_sizes(server, whole)
        return whole, summarized(whole, sizes)
    try:
        part = within_lifetime(whole, number)
    except KeyError:
        start, end = whole.span
        text = _UNKNOWN.format(number=number, seconds=(end - start) / 1e9)
        raise TimelineError(text) from None
    return part, request_summary(part, number)


def _recorded(server: Server, seconds: float | None, last: float | None) -> bytes:
    if last is None:
        last = record_for(_PROGRAM, _SECONDS if seconds is None else seconds)
    return server.read(f"{PATH}?last={last:g}", MAX_BYTES, CONTENT_TYPE)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        # One byte more than allowed: read_timeline() refuses a longer file.
        return file.read(MAX_BYTES + 1)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb", buffering=1 << 20) as file:
        file.writelines(pieces)


def _trace(whole: Joined, form: str) -> Iterator[bytes]:
    if form == "chrome":
        return chrome(laid_out(whole))
    return perfetto(laid_out(whole), whole.epoch_ns, whole.span[0])


def _max_batch_sizes(server: Server, whole: Joined) -> dict[Model, int]:
    """Return each model's max_batch_size as configured now, after the recording."""
    models = sorted({batch.model for batch in whole.batches})
    sizes = {}
    for name, version in models[:_MAX_MODELS]:
        path = f"/v2/models/{quote(name, safe='')}/versions/{version}/config"
        with contextlib.suppress(CannotAskError, ValueError, AttributeError, TypeError):
            sizes[name, version] = int(
                parse_document(server.read(path, json_document.MAX_BYTES)).get("max_batch_size", 0)
            )
    return sizes


def _document(whole: Joined, summary: Summary) -> dict[str, Any]:
    start, end = whole.span
    return {
        "format": FORMAT,
        "problems": summary.problems,
        "seconds": (end - start) / 1e9,
        # UNIX time in seconds.
        "from": (start + whole.epoch_ns) / 1e9,
        "missing": whole.missing,
        "services": [
            {
                "kind": service.kind,
                "name": service.name,
                "records": len(service.records),
                "clock_error_ms": service.error_ns / 1e6,
            }
            for service in whole.services
        ],
        "statements": [asdict(statement) for statement in summary.statements],
        "slowest": [
            {
                "number": slow.number,
                "request_id": slow.request_id,
                "trace_id": slow.trace_id,
                "model": slow.model,
                "version": slow.version,
                "ms": slow.total_ns / 1e6,
                "attempts": slow.attempts,
                "steps": [{"step": name, "ms": part / 1e6} for name, part in slow.steps],
            }
            for slow in summary.slowest
        ],
    }


def _lines(summary: Summary, title: str) -> Iterator[str]:
    for statement in summary.statements:
        text = f"{'problem: ' if statement.problem else ''}{statement.text} [{statement.code}]"
        yield from _wrapped(text, "", "    ")
        if statement.advice:
            yield from _wrapped(statement.advice, "    ", "    ")
    if summary.slowest:
        yield f"{title}:"
    for slow in summary.slowest:
        yield from _wrapped(_slow(slow), "  ", "      ")


def _slow(slow: SlowRequest) -> str:
    names = [
        f"number {slow.number}",
        slow.request_id and f"request {slow.request_id}",
        slow.trace_id and f"trace {slow.trace_id}",
        slow.attempts > 1 and f"{slow.attempts} executions",
    ]
    about = ", ".join(name for name in names if name)
    steps = ", ".join(f"{name} {part / 1e6:.2f}" for name, part in slow.steps)
    model = model_name((slow.model, slow.version))
    return f"{slow.total_ns / 1e6:.2f} ms {model} ({about}): {steps}"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text)
    seconds = float(match[1]) * {"ms": 0.001, "m": 60.0}.get(match[2], 1.0) if match else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"'{text}': expected a time such as 30s or 2m")
    return seconds


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add(
        "file", nargs="?", default="", metavar="FILE",
        help="read this one, which --raw has written, instead of asking a mesh",
    )  # fmt: skip
    add_server_arguments(parser, timeout_s=30)
    add(
        "-m", "--model", action="append", default=[], metavar="NAME",
        help="only the requests and batches of this model; may be repeated",
    )  # fmt: skip
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--seconds", type=_seconds, metavar="S",
        help=f"record from now on, for so long (default: {_SECONDS:g})",
    )  # fmt: skip
    when.add_argument(
        "--last", type=_seconds, metavar="S", help="what has just happened, such as 30s"
    )
    add(
        "--request", type=int, metavar="NUMBER",
        help="only this request, and what happened in its lifetime (without --seconds or --last: of"
        " all that is kept); the slowest requests, here and in the console, have their numbers",
    )  # fmt: skip
    add("-o", "--output", default="", metavar="PATH", help="write a trace")
    add(
        "--format", choices=("perfetto", "chrome"), default="perfetto",
        help="of the trace (default: perfetto)",
    )  # fmt: skip
    raw = add("--raw", default="", metavar="PATH", help="write what was recorded, to be read again")
    parser.hide(raw)
    add("--json", action="store_true", help="print one JSON document")
    return parser
