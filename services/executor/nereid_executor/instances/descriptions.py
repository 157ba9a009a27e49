"""Descriptions of model files, remembered from one scheduler to the next.

A scheduler that asks twice in a row gets a new description: what a model completes by itself may
depend on more than its files.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nereid.backends import backend_capabilities_of
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.core.wire.codecs import write_error
from nereid.core.wire.messages import error_status_of
from nereid.model_config import write_description
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.native.backend import confined
from nereid_executor.backends.python.supervisor.environments import (
    ENVIRONMENT_KEY,
    with_environment,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import Backend, ModelCodeBackend
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid_executor.backends.registry import BackendRegistry
    from nereid_executor.core.model_files import ModelFiles
    from nereid_executor.instances.description_runs import DescriptionRuns
    from nereid_executor.instances.session_instances import ExecutorInstances
    from nereid_executor.repository.model_directories import ModelDirectories

_log = logging.getLogger(__name__)

_numbers = itertools.count(1)
_MOST: Final = 1024


class _Known(NamedTuple):
    # The session to which the description was given last.
    session: int
    files: ModelFiles
    described: pb.Described


class Descriptions:
    """The descriptions that one executor remembers. Thread-safe."""

    def __init__(self, read_files: Callable[[Path], ModelFiles | None], most: int = _MOST) -> None:
        self._read_files = read_files
        self._most = most
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def describe(
        self,
        session: int,
        command: pb.Describe,
        version_path: Path,
        describe: Callable[[], pb.Described],
    ) -> pb.Described:
        """Return the response to a command: a remembered one, or the result of `describe`."""
        key = pb.Describe(
            config=command.config, version_path=command.version_path
        ).SerializeToString(deterministic=True)
        # The files are read first, so that one which changes meanwhile does not count as known.
        files = self._read_files(version_path)
        with self._lock:
            known = self._known.pop(key, None)
            is_known = known is not None and known.session != session and known.files.same_in(files)
            if known is not None and is_known:
                self._known[key] = known._replace(session=session)
        if known is not None and is_known:
            described = pb.Described()
            described.CopyFrom(known.described)
            described.command = command.command
            return described
        described = describe()
        if files is not None and not described.HasField("error"):
            with self._lock:
                self._known[key] = _Known(session, files, described)
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
        return described


class SessionDescriptions:
    """The Describe commands of one session. Used only on the event loop."""

    def __init__(
        self,
        instances: ExecutorInstances,
        descriptions: Descriptions,
        runs: DescriptionRuns,
        on_described: Callable[[pb.Described], None],
        on_progress: Callable[[pb.LoadProgress], None],
    ) -> None:
        self._instances, self._descriptions, self._runs = instances, descriptions, runs
        self._on_described = on_described
        self._on_progress = on_progress
        self._number = next(_numbers)
        self._preparations: set[asyncio.Task[None]] = set()

    def describe(self, command: pb.Describe) -> None:
        """Describe a model's files, once they are on this host."""
        directories = self._instances.directories
        if directories is not None and directories.needs_preparation(command):
            preparation = asyncio.ensure_future(self._prepare(directories, command))
            self._preparations.add(preparation)
            preparation.add_done_callback(self._preparations.discard)
        else:
            self._describe(command, Path(self._instances.settings.local_path(command.version_path)))

    async def _prepare(self, directories: ModelDirectories, command: pb.Describe) -> None:
        try:
            prepared = await directories.prepare(
                command,
                lambda text: self._on_progress(pb.LoadProgress(command=command.command, text=text)),
            )
        except NereidError as error:
            self._report_error(command, error)
            return
        outcome = self._describe(command, prepared.path, prepared.environment)
        outcome.add_done_callback(lambda _: directories.release_soon(prepared))

    def _report_error(self, command: pb.Describe, error: NereidError) -> None:
        described = pb.Described(command=command.command)
        write_error(error_status_of(error), described.error)
        self._on_described(described)

    def _describe(
        self, command: pb.Describe, path: Path, environment: Path | None = None
    ) -> asyncio.Future[pb.Described]:
        backends = self._instances.context.backends

        def describe() -> pb.Described:
            return describe_model(backends, command, path, self._runs.limits.timeout_s, environment)

        def work() -> pb.Described:
            return self._descriptions.describe(self._number, command, path, describe)

        def done(outcome: asyncio.Future[pb.Described]) -> None:
            if outcome.cancelled():
                return
            error = outcome.exception()
            if error is None:
                self._on_described(outcome.result())
            elif isinstance(error, NereidError):
                self._report_error(command, error)
            else:
                _log.error("model %s could not be described", command.config.name, exc_info=error)
                self._report_error(command, Internal(INTERNAL_MESSAGE))

        runs_code = backends.may_run_code(command.config.backend)
        outcome = self._runs.submit(command.config.name, work, runs_code=runs_code)
        outcome.add_done_callback(done)
        return outcome


def describe_model(  # noqa: PLR0913 - some arguments are passed by keyword
    backends: BackendRegistry,
    command: pb.Describe,
    version_path: Path,
    limit_s: float | None = None,
    environment: Path | None = None,
    *,
    confine: Callable[[Backend, ModelConfig, Path], Backend] = confined,
) -> pb.Described:
    """Return the response to a Describe command. Called in a thread.

    environment: the one that was built for the model's packages. confine: returns the backend, or
    one that runs it in another process.
    """
    response = pb.Described(command=command.command)
    config = command.config
    if environment is not None:
        config = with_environment(config, environment)
    try:
        backend = confine(
            backends.load_backend(config.backend, config.runtime), config, version_path
        )
        if backend_capabilities_of(backend).runs_model_code:
            runs_code = cast("ModelCodeBackend", backend)
            description = runs_code.describe_within(config, version_path, limit_s)
        else:
            description = backend.describe(config, version_path)
        write_description(description, response)
        if environment is not None and response.HasField("config"):
            # The path means nothing on other hosts.
            response.config.parameters.pop(ENVIRONMENT_KEY, None)
    except NereidError as error:
        write_error(error_status_of(error), response.error)
    except Exception:
        _log.exception("model %s could not be described", command.config.name)
        write_error(error_status_of(Internal(INTERNAL_MESSAGE)), response.error)
    return response
