"""Writes the outputs that flags ask for, from the result of a run or from result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nereid_perf.output.csv_file import write_csv
from nereid_perf.output.page import named_servers, page_text
from nereid_perf.output.picture import write_png
from nereid_perf.output.result_file import ResultFileError, read_result, write_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_perf.output.result import MeasuredServer, Result
    from nereid_perf.output.settings import OutputSettings


def write_outputs(result: Result, settings: OutputSettings) -> list[Path]:
    """Write the files, and return their paths. May raise PictureError or OSError."""
    written = []
    # The result file is first, because all other outputs can be made from it.
    if settings.json and not settings.prints_json:
        write_result(result, Path(settings.json))
        written.append(Path(settings.json))
    return [*written, *_write_reports({"result": result}, settings)]


def report(paths: Sequence[Path], settings: OutputSettings) -> list[Path]:
    """Write a page, picture or tables. May raise ResultFileError, PictureError or OSError."""
    results = {name: read_result(path) for name, path in _names(paths).items()}
    if settings.json:
        raise ResultFileError("report writes no --json: the result files are that")
    return _write_reports(results, settings)


def _write_reports(results: Mapping[str, Result], settings: OutputSettings) -> list[Path]:
    written = []
    servers = named_servers(results)
    percentile = next(iter(results.values())).percentile
    if settings.csv:
        for path, server in _csv_files(Path(settings.csv), servers).items():
            written += write_csv(server, path, verbose=settings.verbose_csv)
    if settings.html:
        Path(settings.html).write_text(page_text(results), encoding="utf-8")
        written.append(Path(settings.html))
    if settings.png:
        write_png(servers, percentile, Path(settings.png))
        written.append(Path(settings.png))
    return written


def _csv_files(path: Path, servers: Mapping[str, MeasuredServer]) -> dict[Path, MeasuredServer]:
    """Map NAME.csv to the first server, NAME-2.csv to the second, ..."""
    names = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, len(servers) + 1))]
    return dict(zip(names, servers.values(), strict=True))


def _names(paths: Sequence[Path]) -> dict[str, Path]:
    """Map names to paths; if several files have the same name, the path is the name."""
    if len({path.stem for path in paths}) == len(paths):
        return {path.stem: path for path in paths}
    return {str(path): path for path in paths}
