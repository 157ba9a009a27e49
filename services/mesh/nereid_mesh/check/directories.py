"""Findings about a model's files, such as names that are nearly right and versions not served."""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.files.model_folders import LOST_AND_FOUND, may_be_model
from nereid.core.files.regular_files import read_regular_file
from nereid.core.known_backends import ENSEMBLE_PLATFORM, KNOWN_BACKENDS, PYTHON
from nereid.facts.findings import Finding, Severity
from nereid.model_config.versions import select_versions
from nereid.text.decision_reading import MANIFESTS
from nereid_executor.backends.python.packages.requests import (
    REQUIREMENTS,
    RequestError,
    find_request,
)
from nereid_executor.backends.python.supervisor.environments import ENVIRONMENT_KEY
from nereid_scheduler.control.repository.model_folder import (
    EXPORT_MARKS,
    LocalFolder,
    find_export,
)
from nereid_scheduler.core.models.revision import CONFIG_FILE, CONFIG_FOLDER, is_config_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from nereid.pb.model_config_pb2 import ModelConfig

# Folder names such as v1, version-1 and 01 are no versions, but are probably meant to be.
_NEARLY_VERSION: Final = re.compile(r"(?:v|ver|version)?[-_.]?0*(\d+)", re.IGNORECASE)
# By backend: the first of several.
_FILE_NAMES: Final = {known.backend: known.filename for known in reversed(KNOWN_BACKENDS)}
_ALL_FILE_NAMES: Final = frozenset(known.filename for known in KNOWN_BACKENDS)
_PLATFORMS: Final = (*(known.platform for known in KNOWN_BACKENDS), ENSEMBLE_PLATFORM)
_OF_THE_WORKER: Final = frozenset({"c_python_backend_utils", "triton_python_backend_utils"})
_CONFIG_SIMILARITY: Final = 0.75
NO_INPUTS: Final = "no-inputs"


def repository_findings(repository: Path) -> Iterator[Finding]:
    """Yield findings that concern the repository as a whole."""
    names = sorted(entry.name for entry in repository.iterdir())
    is_export = bool(find_export(LocalFolder(repository)))
    if is_export or CONFIG_FILE in names or any(_is_version(name) for name in names):
        yield Finding(
            Severity.ERROR,
            "model-as-repository",
            f"{repository} is a model's folder, not a repository of models",
            f"give its parent: {repository.absolute().parent}",
        )
        return
    for name in names:
        if name in _ALL_FILE_NAMES or Path(name).suffix == ".onnx":
            yield Finding(
                Severity.WARNING,
                "misplaced-file",
                f"{repository / name} belongs to no model, and is not served",
                f"move it to {repository / Path(name).stem / '1'}/",
            )
        elif name == LOST_AND_FOUND:
            yield Finding(
                Severity.NOTE,
                "file-system-folder",
                f"{repository / name} is the file system's own folder, and no model",
            )
    if not any(entry.is_dir() and may_be_model(entry.name) for entry in repository.iterdir()):
        yield Finding(
            Severity.WARNING,
            "empty-repository",
            f"there are no models in {repository}: each is a folder there",
        )


def model_findings(
    path: Path, config: ModelConfig | None, served: Sequence[int], offered: Collection[str]
) -> Iterator[Finding]:
    """Yield findings about the folder of a model.

    config: completed, or as written if that fails; `None` if unreadable. served: versions that are
    loaded or fail to load. offered: backends of executors.
    """
    try:
        entries = sorted(path.iterdir())
    except OSError:
        # The load reports this error.
        return
    files = [entry.name for entry in entries if entry.is_file()]
    folders = [entry.name for entry in entries if entry.is_dir()]
    export = find_export(LocalFolder(path))
    if export:
        yield Finding(
            Severity.NOTE,
            "export",
            f"version 1 is {path / export / 'model.onnx'}, as MLflow or Hugging Face exported it",
            "to configure it, leave it elsewhere: ln -s its folder to NAME/1, beside config.pbtxt",
        )
        return
    if CONFIG_FILE not in files and CONFIG_FOLDER not in folders:
        yield from _config_name(files)
    versions = [name for name in folders if _is_version(name)]
    yield from _version_names(folders, versions)
    if not versions:
        yield from _no_export(files)
        for name in files:
            if name in _ALL_FILE_NAMES:
                yield Finding(
                    Severity.WARNING,
                    "misplaced-file",
                    f"'{name}' is not in the folder of a version, and is not served",
                    f"move it to {path / '1'}/",
                )
    if config is not None:
        yield from _unserved(config, versions, served)
        yield from _backend_name(config, offered)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name


def _config_name(files: Sequence[str]) -> Iterator[Finding]:
    lower = {name.lower(): name for name in files if not is_config_file(name)}
    near = get_close_matches(CONFIG_FILE, lower, n=1, cutoff=_CONFIG_SIMILARITY)
    if near:
        yield Finding(
            Severity.WARNING,
            "config-file-name",
            f"'{lower[near[0]]}' is not read: a configuration is in '{CONFIG_FILE}'",
            f"rename it to {CONFIG_FILE}",
        )


def _no_export(files: Sequence[str]) -> Iterator[Finding]:
    # The load reports an error about packages.
    marks = [name for name in EXPORT_MARKS if name in files and name not in MANIFESTS]
    if marks and CONFIG_FILE not in files and "model.onnx" not in files:
        yield Finding(
            Severity.WARNING,
            "no-export",
            f"there is '{marks[0]}', but no 'model.onnx' that could be served",
            "export it, such as by optimum-cli export onnx or mlflow.onnx.save_model",
        )


def _version_names(folders: Sequence[str], versions: Sequence[str]) -> Iterator[Finding]:
    for name in folders:
        match = _NEARLY_VERSION.fullmatch(name)
        if match is not None and name not in versions:
            yield Finding(
                Severity.WARNING,
                "version-folder-name",
                f"folder '{name}' is not a version: those are whole numbers without leading zeros",
                f"did you mean '{match[1]}'?",
            )


def _unserved(
    config: ModelConfig, versions: Sequence[str], served: Sequence[int]
) -> Iterator[Finding]:
    available = sorted(map(int, versions))
    policy = config.version_policy
    missing = [number for number in policy.specific.versions if number not in available]
    if missing:
        yield Finding(
            Severity.WARNING,
            "missing-versions",
            f"version_policy names versions that are not there: {_numbers(missing)}",
            f"there are {_numbers(available)}" if available else "",
        )
    # A load that fails may not have read the policy.
    chosen = {*served, *select_versions(policy, available)}
    unserved = [number for number in available if number not in chosen]
    if unserved:
        choice = policy.WhichOneof("policy_choice") or "latest"
        yield Finding(
            Severity.NOTE,
            "unserved-versions",
            f"version_policy ({choice}) does not select versions {_numbers(unserved)}",
        )


def _backend_name(config: ModelConfig, offered: Collection[str]) -> Iterator[Finding]:
    known = sorted({*offered, *_FILE_NAMES})
    if config.backend and config.backend not in known:
        near = get_close_matches(config.backend, known, n=1)
        if near:
            yield Finding(
                Severity.WARNING,
                "unknown-backend",
                f"no backend is named '{config.backend}'",
                f"did you mean '{near[0]}'?",
            )
    elif config.backend in _FILE_NAMES and config.backend not in offered:
        yield Finding(
            Severity.NOTE,
            "backend-not-installed",
            f"backend '{config.backend}' is not installed on this machine",
            f"install it, or say that executors have it: --assume-backend={config.backend}",
        )
    elif not config.backend and config.platform and config.platform not in _PLATFORMS:
        near = get_close_matches(config.platform, _PLATFORMS, n=1)
        if near:
            yield Finding(
                Severity.WARNING,
                "unknown-platform",
                f"no platform is named '{config.platform}'",
                f"did you mean '{near[0]}'?",
            )


def _file_name_hint(name: str, config: ModelConfig | None) -> str:
    if config is not None and name != _FILE_NAMES.get(config.backend):
        for known in KNOWN_BACKENDS:
            if (known.backend, known.filename) == (config.backend, name):
                return f'set platform: "{known.platform}"'
    return f'rename it, or set default_model_filename: "{name}"'


def version_findings(
    version: Path, config: ModelConfig | None, *, is_completed: bool
) -> Iterator[Finding]:
    """Yield findings about the model file of a version.

    config: completed, or as written, or `None` if unreadable.
    """
    try:
        names = sorted(entry.name for entry in version.iterdir())
    except OSError:
        # The load reports this error.
        return
    expected = set(_ALL_FILE_NAMES)
    if config is not None and config.default_model_filename:
        expected = {config.default_model_filename}
    elif config is not None and config.backend in _FILE_NAMES:
        expected = {_FILE_NAMES[config.backend]}
    elif config is not None and (config.backend or config.platform):
        # This backend's file names are unknown; an ensemble has no model file.
        return
    if not expected.isdisjoint(names):
        if config is not None and config.backend == PYTHON:
            yield from _python_source(version / next(iter(expected)), config, is_completed)
        elif config is not None and expected.intersection(names) == {_FILE_NAMES[PYTHON]}:
            yield from _python_source(version / _FILE_NAMES[PYTHON], config, is_completed)
        return
    if len(expected) == 1:
        (wanted,) = expected
        near = [name for name in names if Path(name).suffix == Path(wanted).suffix]
        near = near or get_close_matches(wanted, names, n=1)
    else:
        suffixes = {Path(name).suffix: name for name in _ALL_FILE_NAMES}
        near = [name for name in names if Path(name).suffix in suffixes]
        wanted = suffixes[Path(near[0]).suffix] if near else ""
    if near:
        yield Finding(
            Severity.WARNING,
            "model-file-name",
            f"version {version.name} has '{near[0]}' where '{wanted}' is expected",
            _file_name_hint(near[0], config),
        )


def _python_source(path: Path, config: ModelConfig, is_completed: bool) -> Iterator[Finding]:
    """Yield the errors of an import of the file, without running code."""
    try:
        tree = ast.parse(read_regular_file(path), filename=str(path))
    except (SyntaxError, ValueError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        yield Finding(
            Severity.ERROR, "python-source", f"{type(error).__name__} in {path}{place}: {text}"
        )
        return
    except OSError:
        return
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.alias)}
    names |= {node.asname for node in ast.walk(tree) if isinstance(node, ast.alias) and node.asname}
    if "TritonPythonModel" not in names and "*" not in names:
        yield Finding(
            Severity.ERROR,
            "python-source",
            f"AttributeError: Python model file '{path}' has no class TritonPythonModel",
        )
    if not config.input and (is_completed or _completes_nothing(tree)):
        yield Finding(
            Severity.WARNING,
            NO_INPUTS,
            f"Python model '{path}' declares no inputs: clients cannot send any",
            "write input and output in config.pbtxt, or a static method"
            " auto_complete_config(config) of TritonPythonModel that calls config.add_input,"
            " config.add_output and config.set_max_batch_size, and returns config",
        )
    # A packed environment brings its own packages, as do requirements.
    if ENVIRONMENT_KEY in config.parameters:
        return
    try:
        request = find_request(path.parent, path)
    except RequestError as error:
        yield Finding(Severity.ERROR, "python-packages", str(error))
        return
    if request is None:
        yield from _missing_packages(tree, path)


def _completes_nothing(tree: ast.Module) -> bool:
    """Return whether the model's class is here, and surely has no auto_complete_config."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return any(
        node.name == "TritonPythonModel"
        and not (node.bases or node.decorator_list or node.keywords)
        and "auto_complete_config" not in ast.dump(tree)
        for node in classes
    )


def _missing_packages(tree: ast.Module, path: Path) -> Iterator[Finding]:
    """Yield findings about packages that the file always imports and this Python lacks."""
    imported: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            imported.add(statement.module.partition(".")[0])
    for name in sorted(imported - _OF_THE_WORKER):
        beside = any(
            (folder / name).is_dir() or (folder / f"{name}.py").is_file()
            for folder in (path.parent, path.parent.parent)
        )
        if not beside and find_spec(name) is None:
            yield Finding(
                Severity.WARNING,
                "missing-package",
                f"{path} imports '{name}', which this Python does not have",
                f"name it in {REQUIREMENTS} beside the model, install it where executors run, or"
                f" pack it for parameter {ENVIRONMENT_KEY}",
            )


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
