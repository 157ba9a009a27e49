"""Findings about what a configuration's files say, with their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.files.regular_files import read_regular_file
from nereid.core.traffic.mismatches import find_mismatches
from nereid.core.variables import MARK, names_variable, wants_variables
from nereid.facts.findings import Finding, Severity
from nereid.model_config.batching_fields import TRAFFIC, configured_traffic
from nereid.model_config.overlays import ConfigFile, merge_config_files
from nereid.model_config.text_fields import text_fields
from nereid_scheduler.control.repository.model_folder import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from nereid.model_config.text_fields import TextField
    from nereid_mesh.check.findings import CheckedVersion
    from nereid_scheduler.control.repository.config_files import ConfigFiles

_TRAFFIC: Final = f"parameters[{TRAFFIC}]"


def written_findings(
    path: Path, config_files: ConfigFiles, versions: Sequence[CheckedVersion]
) -> Iterator[Finding]:
    """Yield findings about the files of a model that can be served. path: its folder."""
    files = _read_files(path, config_files)
    for file in files:
        if not wants_variables(file.text):
            yield from _unmarked(file)
    yield from _traffic(files, path.name, config_files, versions)


def _read_files(path: Path, config_files: ConfigFiles) -> list[ConfigFile]:
    base = config_files.choose(LocalFolder(path).has_file)
    names = [name for name in (base, config_files.overlay) if name and (path / name).is_file()]
    return [
        ConfigFile(name, read_regular_file(path / name).decode(), name != base) for name in names
    ]


def _unmarked(file: ConfigFile) -> Iterator[Finding]:
    line = _line_of_variable(text_fields(file.text.removeprefix("\ufeff")))
    if line:
        yield Finding(
            Severity.NOTE,
            "variables-not-read",
            f"{file.name}:{line}: '${{' stays as it is",
            f"variables are read in files whose first line is '{MARK}'",
        )


def _line_of_variable(fields: Iterable[TextField]) -> int:
    """Return the first line whose string names a variable, or 0."""
    for each in fields:
        for value in each.values:
            line = value.line if any(map(names_variable, value.tokens)) else 0
            line = line or _line_of_variable(value.fields)
            if line:
                return line
    return 0


def _traffic(
    files: Sequence[ConfigFile],
    model: str,
    config_files: ConfigFiles,
    versions: Sequence[CheckedVersion],
) -> Iterator[Finding]:
    configs = {version.number: version.config for version in versions}
    latest = next((config for config in reversed(configs.values()) if config is not None), None)
    traffic = None if latest is None else configured_traffic(latest)
    if traffic is None:
        return
    inputs = {
        number: None if config is None else [tensor.name for tensor in config.input]
        for number, config in configs.items()
    }
    mismatches = find_mismatches(traffic, inputs, latest)
    if not mismatches:
        return
    merged = merge_config_files(files, model_name=model, variables=config_files.variables)
    # A Python model's own code may add the parameter.
    place = merged.sources.get(_TRAFFIC, _TRAFFIC)
    for text in mismatches:
        yield Finding(Severity.WARNING, "traffic-mismatch", f"{place}: {text}")
