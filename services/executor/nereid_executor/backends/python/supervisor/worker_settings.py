"""Reads the settings of a Python model's worker from the configuration and --backend-config."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid_executor.backends.python.sandbox.policy import WORKER_SANDBOX
from nereid_executor.backends.python.supervisor.environments import ENVIRONMENT_KEY, python_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import model_config_pb2
    from nereid_executor.backends.python.sandbox.policy import Confinement

_START_KEY: Final = "stub-timeout-seconds"
_START_DEFAULT_S: Final = 30.0
# 0, the default, means no limit. Large models need minutes, and Triton waits for them too.
_INITIALIZE_KEY: Final = "initialize-timeout-seconds"
_EXECUTE_KEY: Final = "execute-timeout-seconds"
# The setting has no effect, since inputs are always in the CPU's memory. As on Triton, an invalid
# value is refused.
_CPU_INPUTS_KEY: Final = "FORCE_CPU_ONLY_INPUT_TENSORS"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Interpreter, time limits and confinement of a worker; `None` means no limit."""

    python: str
    start_s: float = _START_DEFAULT_S
    initialize_s: float | None = None
    execute_s: float | None = None
    confinement: Confinement | None = None


def read_worker_settings(
    config: model_config_pb2.ModelConfig, model_path: Path, backend: Mapping[str, str]
) -> WorkerSettings:
    """Return the settings. The model's parameters take precedence over --backend-config.

    Raises InvalidArgument or Unimplemented for an invalid value, Internal if the model's
    environment cannot be used.
    """
    if _CPU_INPUTS_KEY in config.parameters:
        wanted = config.parameters[_CPU_INPUTS_KEY].string_value
        if wanted not in ("yes", "no"):
            # The stray quote is part of Triton's text.
            raise Unimplemented(f"Incorrect value for {_CPU_INPUTS_KEY}: {wanted}'")

    def seconds(key: str, default: float) -> float:
        text = backend.get(key, str(default))
        if key in config.parameters:
            text = config.parameters[key].string_value
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise InvalidArgument(
                f"model '{config.name}': {key} is '{text}', expected a number of seconds"
            )
        return value

    python = _python(config, model_path)
    return WorkerSettings(
        python=python,
        start_s=seconds(_START_KEY, _START_DEFAULT_S) or _START_DEFAULT_S,
        initialize_s=seconds(_INITIALIZE_KEY, 0) or None,
        execute_s=seconds(_EXECUTE_KEY, 0) or None,
        confinement=WORKER_SANDBOX.confinement_of(config, model_path, python),
    )


def _python(config: model_config_pb2.ModelConfig, model_path: Path) -> str:
    if ENVIRONMENT_KEY not in config.parameters:
        return sys.executable
    text = config.parameters[ENVIRONMENT_KEY].string_value
    text = text.replace("$$TRITON_MODEL_DIRECTORY", str(model_path))
    return python_of(config.name, Path(os.path.normpath(text)))
