"""Environments of Python models that name their packages: found, or built once for the host."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.backends.file_digests import digest_of
from nereid.core.errors import Internal, InvalidArgument, Unavailable
from nereid.object_store.errors import FetchCancelledError
from nereid_executor.backends.python.packages.build_commands import (
    Installer,
    OwnPython,
    PlanError,
    build_commands,
    build_environ,
    plan_build,
)
from nereid_executor.backends.python.packages.build_output import BuildOutput
from nereid_executor.backends.python.packages.build_process import (
    BuildCancelledError,
    BuildTimeoutError,
    ProcessRules,
    run_build_process,
)
from nereid_executor.backends.python.packages.environment_cache import EnvironmentCache
from nereid_executor.backends.python.packages.eviction import KeptLimits
from nereid_executor.backends.python.packages.requests import Lock, RequestError, find_request
from nereid_executor.backends.python.supervisor.environments import ENVIRONMENT_KEY

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from nereid.pb import model_config_pb2
    from nereid_executor.backends.python.packages.build_commands import BuildPlan
    from nereid_executor.backends.python.packages.environment_cache import EnvironmentLease
    from nereid_executor.backends.python.packages.requests import PackageRequest
    from nereid_executor.settings import ExecutorSettings

_log = logging.getLogger(__name__)

_BACKEND: Final = "python"
_SCRIPT: Final = "model.py"
_MAX_ENVIRONMENTS: Final = 100


class ModelPackages:
    """Finds and builds the environments of models. Thread-safe; methods may block for minutes."""

    def __init__(self, settings: ExecutorSettings, installer: Installer | None = None) -> None:
        """Create it for these settings; installer: by default uv, else pip, where there is one."""
        self._mode = settings.model_packages
        self._wheelhouse = settings.model_wheelhouse
        self._limit_s = settings.model_build_timeout_secs
        directory = settings.model_environment_directory
        self._cache = EnvironmentCache(
            Path(directory) if directory else default_directory(),
            KeptLimits(_MAX_ENVIRONMENTS, settings.model_environment_bytes),
        )
        self._installer = installer

    def may_apply(self, config: model_config_pb2.ModelConfig) -> bool:
        """Return whether a model with this configuration may name packages."""
        return config.backend == _BACKEND and ENVIRONMENT_KEY not in config.parameters

    def find(
        self, config: model_config_pb2.ModelConfig, version_path: Path
    ) -> PackageRequest | None:
        """Return what a version's files name; raise InvalidArgument if they make no sense.

        The result is `None` as well if models may not install packages.
        """
        if not self.may_apply(config):
            return None
        try:
            request = find_request(
                version_path, version_path / (config.default_model_filename or _SCRIPT)
            )
        except RequestError as error:
            raise InvalidArgument(f"model '{config.name}': {error}") from error
        if request is not None and self._mode == "off":
            _log.info(
                "model %s: %s is ignored, as models may not install packages (--model-packages)",
                config.name,
                request.source,
            )
            return None
        return request

    def lease(
        self,
        model: str,
        request: PackageRequest,
        cancelled: threading.Event,
        on_progress: Callable[[str], None],
    ) -> EnvironmentLease:
        """Return the environment with these packages, and build it first if there is none.

        Raises InvalidArgument, Internal, or Unavailable if cancelled.
        """
        wheelhouses = [str(request.wheels)] if request.wheels is not None else []
        wheelhouses += [self._wheelhouse] if self._wheelhouse else []
        try:
            plan = plan_build(
                request,
                own_python(),
                {folder: digest_of(Path(folder)) for folder in wheelhouses},
                build_environ(os.environ, Path(), Path(), has_wheelhouse=bool(wheelhouses)),
                offline=self._mode == "offline",
            )
            build = _Build(
                model,
                plan,
                self._installer or find_installer(),
                self._limit_s,
                cancelled,
                on_progress,
            )
            return self._cache.lease(
                plan.name,
                build.run,
                cancelled,
                lambda: on_progress("waiting for another executor that installs its packages"),
            )
        except PlanError as error:
            raise InvalidArgument(f"model '{model}': {error}") from error
        except (FetchCancelledError, BuildCancelledError) as error:
            raise Unavailable(f"model '{model}' is not wanted any more") from error
        except OSError as error:
            raise Internal(
                f"model '{model}': its packages cannot be installed: {error}"
                " (--model-environment-directory)"
            ) from error


@dataclass(frozen=True)
class _Build:
    model: str
    plan: BuildPlan
    installer: Installer
    limit_s: float
    cancelled: threading.Event
    on_progress: Callable[[str], None]
    output: BuildOutput = field(default_factory=BuildOutput)

    def run(self, target: Path, scratch: Path, lock: int) -> None:
        """Build the environment; raise Internal with the installer's last words if that fails."""
        plan, own, began = self.plan, own_python(), time.monotonic()
        for name, text in plan.request.texts.items():
            path = scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if plan.request.wheels is not None and plan.request.lock in (Lock.PYLOCK, Lock.PROJECT):
            # These name wheels by paths relative to their own.
            first = scratch / next(iter(plan.request.texts))
            wheels = os.path.relpath(plan.request.wheels, plan.request.source.parent)
            link = Path(os.path.normpath(first.parent / wheels))
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(plan.request.wheels.resolve())
        _log.info("model %s: installing the packages of %s", self.model, plan.request.source)
        self.on_progress("resolving its packages")
        has_wheelhouse = bool(plan.wheelhouses)
        environ = build_environ(os.environ, target, scratch, has_wheelhouse=has_wheelhouse)
        rules = ProcessRules(environ, scratch, lock, began + self.limit_s, self.cancelled)
        try:
            for command in build_commands(plan, own, self.installer, target, scratch):
                code = run_build_process(command, rules, self._on_line)
                if code:
                    raise self._error("cannot be installed", f"exit code {code}")
        except BuildTimeoutError as error:
            limit = f"{self.limit_s:g} s (--model-build-timeout-secs)"
            raise self._error(f"were not installed within {limit}") from error
        if not plan.other_python:
            _share_numpy(target, own)
        _log.info(
            "model %s: packages are installed: directory=%s seconds=%.1f",
            self.model,
            target,
            time.monotonic() - began,
        )

    def _error(self, what: str, otherwise: str = "no output") -> Internal:
        source, words = self.plan.request.source, self.output.last_words() or otherwise
        return Internal(f"model '{self.model}': the packages of {source} {what}: {words}")

    def _on_line(self, line: str) -> None:
        progress = self.output.add(line)
        if progress:
            self.on_progress(progress)


def default_directory() -> Path:
    """Return the default directory of environments, in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "") or "/"
    return (Path(base) if base.startswith("/") else Path(home, ".cache")) / "nereid/environments"


@cache
def own_python() -> OwnPython:
    """Return the facts about this interpreter that decide what can be installed for it."""
    numpy = importlib.util.find_spec("numpy")
    site, version = "", ""
    if numpy is not None and numpy.origin is not None:
        site = str(Path(numpy.origin).parent.parent)
        version = importlib.metadata.version("numpy")
    libc = "-".join(platform.libc_ver())
    return OwnPython(
        sys.executable,
        sys.version_info[:3],
        f"{sys.version} {sysconfig.get_platform()} {libc} {sys.base_prefix}",
        (site, version),
    )


def find_installer() -> Installer:
    """Return uv, of a package or on PATH, or else pip; raise PlanError if there is neither."""
    with_package = Path(sysconfig.get_path("scripts"), "uv")
    if importlib.util.find_spec("uv") is not None and with_package.is_file():
        return Installer(str(with_package))
    if (found := shutil.which("uv")) is not None:
        return Installer(str(Path(found).absolute()))
    if importlib.util.find_spec("pip") is not None:
        return Installer(sys.executable, is_uv=False)
    raise PlanError("packages cannot be installed, as there is neither uv nor pip (pip install uv)")


def _share_numpy(target: Path, own: OwnPython) -> None:
    """Link the executor's numpy, which pb_utils needs, unless the packages include one."""
    site = next(iter(target.glob("lib/python*/site-packages")), None)
    if site is None or (site / "numpy").exists() or not own.numpy[0]:
        return
    for path in (
        *Path(own.numpy[0]).glob("numpy"),
        *Path(own.numpy[0]).glob("numpy.libs"),
        *Path(own.numpy[0]).glob("numpy-*.dist-info"),
    ):
        (site / path.name).symlink_to(path)
