"""From the executor's first word to a model that serves: its file, its class, its initialize()."""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import wire
from .link import Link, connect
from .model_config import ModelConfig
from .segments import Segments
from .serving import Serving
from .texts import Refusal, error_text

if TYPE_CHECKING:
    from types import ModuleType

    from .channel import Channel


def work(channel: Channel, began: Any) -> int:
    """The worker's life; its process's exit code. Raises wire.LostError without an executor."""
    # Whatever stands in a model's own folders: these are the API.
    sys.modules["triton_python_backend_utils"] = _module("triton_python_backend_utils")
    sys.modules["c_python_backend_utils"] = _module("c_python_backend_utils")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a pipe's or file's
    channel.send(wire.STARTED, [])
    kind, body = channel.receive()
    about = json.loads(bytes(body))
    link = Link(channel)
    link.verbose = about["verbose"]
    link.model_dir = about["version_path"]
    connect(link)
    try:
        if kind == wire.DESCRIBE:
            link.tell(wire.DESCRIBED, _completed(about))
            return 0
        name = about["args"]["model_instance_name"]
        link.instance = name
        if about["memory"] is not None:
            link.segments = Segments(*about["memory"])
        serving = Serving(link, name, began, decoupled=about["decoupled"])
        model = _initialised(about)
    except BaseException as error:
        link.tell(wire.FAILED, error_text(error))
        return 1
    link.tell(wire.INITIALIZED, serving.take(model))
    serving.run()
    atexit._run_exitfuncs()
    link.tell(wire.FINALIZED, None)
    return 0


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _model_class(about: dict[str, Any]) -> Any:
    """The file's TritonPythonModel. Raises whatever importing it raises."""
    path = Path(about["version_path"])
    file = path / about["filename"]
    if not file.is_file():
        raise FileNotFoundError(f"Python model file not found in '{file}'")
    # As a module of the version's folder, so that relative imports find its neighbours.
    sys.path += [str(path), str(path.parent)]
    module = importlib.import_module(f"{path.name}.{file.stem}")
    if not hasattr(module, "TritonPythonModel"):
        raise AttributeError(f"Python model file '{file}' has no class TritonPythonModel")
    return module.TritonPythonModel


def _completed(about: dict[str, Any]) -> Any:
    """The configuration as auto_complete_config leaves it; None: the model has no such function."""
    model_class = _model_class(about)
    if not hasattr(model_class, "auto_complete_config"):
        return None
    completed = model_class.auto_complete_config(ModelConfig(about["model_config"]))
    if not isinstance(completed, ModelConfig):
        name = json.loads(about["model_config"])["name"]
        raise Refusal(
            f"auto_complete_config function in model '{name}' must return a valid "
            "pb.ModelConfig object."
        )
    return completed.as_dict()


def _initialised(about: dict[str, Any]) -> Any:
    model_class = _model_class(about)
    model = model_class()
    if not hasattr(model, "execute"):
        path = Path(about["version_path"]) / about["filename"]
        raise AttributeError(f"Python model {path} does not implement `execute` method.")
    if hasattr(model, "initialize"):
        model.initialize(about["args"])
    return model
