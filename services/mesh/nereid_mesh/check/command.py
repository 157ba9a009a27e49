"""`nereid check PATH`: checks a model repository without starting a mesh.

Exit codes: 0 nothing is wrong, 1 errors (with --strict also warnings), 2 no check was possible.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nereid.cli.command_parser import CommandParser
from nereid.config.flags import boolean, declared_flags
from nereid.core.errors import InvalidArgument
from nereid.core.files.regular_files import read_regular_file
from nereid.core.terminal import print_error, print_lines
from nereid.facts.findings import Finding, Severity
from nereid.model_config import parse_config
from nereid.pb import model_config_pb2
from nereid_executor.backends.registry import BackendRegistry
from nereid_executor.settings import ExecutorSettings, prepare_environment
from nereid_mesh.check.advice import advise
from nereid_mesh.check.directories import (
    NO_INPUTS,
    model_findings,
    repository_findings,
    version_findings,
)
from nereid_mesh.check.failed_steps import fail_with_steps
from nereid_mesh.check.model_reader import NOT_RUN, ModelReader
from nereid_mesh.check.rehearsal import RehearsalRules, rehearse
from nereid_mesh.check.report import json_report, text_report
from nereid_mesh.check.texts import text_findings
from nereid_mesh.check.written import written_findings
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.model_folder import LocalFolder, find_export
from nereid_scheduler.control.repository.repositories import Repositories
from nereid_scheduler.core.models.dependencies import plain_name
from nereid_scheduler.core.models.revision import CONFIG_FILE, CONFIG_FOLDER
from nereid_scheduler.placement.models.config_completion import CompletionRules
from nereid_scheduler.settings import Settings as SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.config.flags import DeclaredFlag
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid_mesh.check.findings import CheckedModel

SUMMARY: Final = "say what is wrong with a model repository"
_PROGRAM = "nereid check"
# The scheduler's flags that affect how a repository is served.
_SHARED: Final = frozenset(
    {
        "backend_config",
        "backends",
        "disable_auto_complete_config",
        "model_config_env",
        "model_config_name",
        "model_config_profile",
        "model_namespacing",
    }
)
_DESCRIPTION = """\
Say what a mesh would make of model repositories, without starting one: each model's completed
configuration, its instances, why it does not batch, and what is wrong, in the words that loading
would use. Model files are read by the backends that are installed here; nothing is loaded onto a
device, and no Python model's code is run unless --run-models asks for it. Native code is loaded
into a confined process.
"""
_EPILOG = """\
exit codes: 0: nothing is wrong; 1: there are errors, or with --strict warnings; 2: it could not be
checked. With --json the output is one document, which docs/model-authors/check.md describes.
"""


def main(argv: Sequence[str]) -> int:
    """Check the repositories, print the report, and return the exit code."""
    parser = make_parser()
    given = parser.parse_intermixed_args(argv)
    paths = [*given.path, *given.model_repository]
    if not paths:
        parser.error("give the path of a model repository")
    for path in paths:
        if not Path(path).is_dir():
            parser.error(f"'{path}': there is no such directory")
    prepare_environment()
    shared = {flag.field.name: getattr(given, flag.field.name) for flag in _shared_flags()}
    settings = SchedulerSettings(model_repository=tuple(paths), **shared)
    rules = RehearsalRules(
        CompletionRules(settings.disable_auto_complete_config, settings.backend_settings),
        settings.backends,
        _gpus(given.gpus),
    )
    directory = Path(given.backend_directory) if given.backend_directory else None
    reader = ModelReader(
        BackendRegistry(directory),
        given.assume_backend,
        run_code=given.run_models,
        readable=given.sandbox_read_path,
    )
    config_files = ConfigFiles(
        settings.model_config_name, settings.model_config_profile, settings.config_variables()
    )
    repositories = Repositories(paths, config_files, settings.model_namespacing)
    # The scheduler would log the texts of the findings again.
    logging.disable(logging.NOTSET if given.verbose else logging.CRITICAL)
    try:
        models = asyncio.run(rehearse(repositories, reader, rules, given.model))
        of_repositories = [finding for path in paths for finding in repository_findings(Path(path))]
        of_repositories += _unused_profile(models, repositories, config_files)
        for model in models:
            _add_findings(model, repositories, reader, config_files)
        fail_with_steps(models)
    except OSError as error:
        print_error(_PROGRAM, f"a model repository cannot be read: {error}")
        return 2
    finally:
        logging.disable(logging.NOTSET)
    findings = [*of_repositories, *(finding for model in models for finding in model.findings)]
    failing = {Severity.ERROR, Severity.WARNING} if given.strict else {Severity.ERROR}
    problems = any(finding.severity in failing for finding in findings)
    if given.json:
        print(json_report(models, of_repositories, problems=problems))
    else:
        print_lines(text_report(models, of_repositories).split("\n"))
    return 1 if problems else 0


def _unused_profile(
    models: Iterable[CheckedModel], repositories: Repositories, config_files: ConfigFiles
) -> list[Finding]:
    overlay = config_files.overlay
    if not overlay or any(
        (path / overlay).is_file() for model in models for path in _paths(model, repositories)
    ):
        return []
    return [Finding(Severity.WARNING, "no-overlay", f"no model's directory has '{overlay}'")]


def _paths(model: CheckedModel, repositories: Repositories) -> list[Path]:
    """Return the model's directories, of which it has one unless repositories conflict."""
    return [
        path
        for repository in repositories.paths
        if not model.namespace or repository == model.namespace
        if (path := Path(repository) / plain_name(model.name, model.namespace)).is_dir()
    ]


def _add_findings(
    model: CheckedModel, repositories: Repositories, reader: ModelReader, config_files: ConfigFiles
) -> None:
    paths = _paths(model, repositories)
    if len(paths) != 1:
        return
    (path,) = paths
    model.path = str(path)
    config = next(
        (version.config for version in model.versions if version.config is not None), None
    )
    written = config if config is not None else _read_written(path)
    served = [version.number for version in model.versions]
    model.findings += model_findings(path, written, served, reader.offered)
    findings: dict[Finding, None] = {}
    export = find_export(LocalFolder(path))
    for number, version in enumerate(model.versions):
        version_path = str(path.absolute() / (export or str(version.number)))
        is_completed = version.config is not None
        of_file: list[Finding] = []
        if not export:
            version_folder = path / str(version.number)
            of_file += version_findings(version_folder, written, is_completed=is_completed)
        findings.update(dict.fromkeys(of_file))
        error = next((each for each in of_file if each.severity is Severity.ERROR), None)
        if error is not None:
            model.versions[number] = replace(
                version, state="UNAVAILABLE", reason=error.message, instances=()
            )
            continue
        if all(finding.code != NO_INPUTS for finding in of_file):
            findings.update(dict.fromkeys(_unread(reader, version_path)))
        if version.config is not None and version.state == "READY":
            findings.update(dict.fromkeys(advise(version.config, reader.description(version_path))))
            place = export or str(version.number)
            findings.update(dict.fromkeys(text_findings(path, place, version.config)))
    if any(version.config is not None for version in model.versions):
        findings.update(dict.fromkeys(written_findings(path, config_files, model.versions)))
    model.findings += findings


def _read_written(path: Path) -> ModelConfig | None:
    if not (path / CONFIG_FILE).exists() and not (path / CONFIG_FOLDER).exists():
        return model_config_pb2.ModelConfig(name=path.name)
    try:
        return parse_config(read_regular_file(path / CONFIG_FILE).decode(), model_name=path.name)
    except (OSError, UnicodeDecodeError, InvalidArgument):
        return None


def _unread(reader: ModelReader, version_path: str) -> Iterable[Finding]:
    reason = reader.unread.get(version_path)
    if reason is not None:
        incomplete = version_path in reader.incomplete
        yield Finding(
            Severity.WARNING if incomplete else Severity.NOTE,
            "not-completed" if incomplete else "not-read",
            f"{'the configuration is not complete' if incomplete else 'as far as it is written'}:"
            f" {reason}",
            "--run-models runs it" if reason == NOT_RUN else "check where it is installed",
        )


def _gpus(text: str) -> tuple[int, ...]:
    if text == "none":
        return ()
    if text != "all":
        return tuple(sorted({int(part) for part in text.split(",")}))
    # This import loads NumPy and more.
    from nereid_executor.service import offered_gpus  # noqa: PLC0415

    return tuple(gpu.id for gpu in offered_gpus(ExecutorSettings(), BackendRegistry()))


def _gpu_list(text: str) -> str:
    if text not in ("all", "none") and not all(
        part.strip().isdecimal() for part in text.split(",")
    ):
        raise ValueError("expected all, none, or GPUs' numbers such as 0,2")
    return text


def make_parser() -> CommandParser:
    """Return the command's flags."""
    parser = CommandParser(_PROGRAM, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("path", nargs="*", help="a model repository; there may be several")
    add(
        "--model-repository", "--model-store", "--model-repo", action="append", default=[],
        metavar="PATH", help="the same, as nereid serve has it",
    )  # fmt: skip
    add(
        "-m", "--model", action="append", default=[], metavar="NAME",
        help="check this model alone, and those that it is an ensemble of; may be repeated",
    )  # fmt: skip
    add(
        "--gpus", default="all", type=_argument(_gpu_list), metavar="LIST",
        help="place instances on these GPUs: all that this machine has (the default), none, or"
        " numbers such as 0,1, whether this machine has them or not",
    )  # fmt: skip
    add("--strict", action="store_true", help="warnings are problems, too: exit with 1")
    add("--json", action="store_true", help="print one JSON document")
    add(
        "--run-models", action="store_true",
        help="have Python models complete their configurations, which runs their code",
    )  # fmt: skip
    add(
        "--assume-backend", action="append", default=[], metavar="NAME",
        help="a backend that executors have though this machine does not; may be repeated",
    )  # fmt: skip
    add("-v", "--verbose", action="store_true", help="log what the scheduler's code logs")
    served = parser.add_argument_group("as nereid serve has them")
    for flag in _shared_flags():
        if flag.option.bare is not None or flag.option.parse is boolean:
            value: dict[str, Any] = {"nargs": "?", "const": True}
        else:
            value = {"action": "append" if flag.option.repeated else "store"}
        action = served.add_argument(
            flag.name,
            *flag.option.aliases,
            dest=flag.field.name,
            type=_argument(flag.option.parse),
            default=[] if flag.option.repeated else flag.field.default,
            metavar="VALUE",
            help=flag.option.help.replace("%", "%%"),
            **value,
        )
        parser.hide(action)
    parser.hide(served.add_argument("--backend-directory", default="", metavar="PATH"))
    parser.hide(
        served.add_argument("--sandbox-read-path", action="append", default=[], metavar="PATH")
    )
    return parser


def _shared_flags() -> list[DeclaredFlag]:
    return [flag for flag in declared_flags(SchedulerSettings) if flag.field.name in _SHARED]


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a flag's parser, so that argparse prints the parser's error message."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument
