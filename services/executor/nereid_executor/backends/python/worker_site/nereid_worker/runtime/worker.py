"""Runs a worker: loads the model's file, initialises the model, and serves until FINALIZE."""

from __future__ import annotations

import atexit
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..connection.executor_connection import ExecutorConnection, set_connection
from ..connection.request_segments import RequestSegmentPool
from ..pb_utils import modules
from ..pb_utils.model_config import ModelConfig
from ..protocol import wire
from .error_text import ModelMisuse, error_text, explain_errors
from .executions import Executions
from .frame_reader import FrameReader
from .model_runner import ModelRunner
from .printed_lines import begin_lines
from .serving import Serving

if TYPE_CHECKING:
    from ..protocol.channel import Channel
    from .serving import StreamServer


def run_worker(
    channel: Channel, last_batch: Any, stream_server: type[StreamServer] | None = None
) -> int:
    """Run until the executor finalises the model; return the process's exit code.

    Raises wire.LostError if the executor has closed the socket.
    """
    modules.register()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    channel.send(wire.STARTED, [])
    kind, body = channel.receive()
    message = json.loads(bytes(body))
    explain_errors(message["advice"])
    reader = FrameReader(channel)
    executions = Executions(last_batch, decoupled=message["decoupled"])
    connection = ExecutorConnection(channel, message["version_path"], verbose=message["verbose"])
    set_connection(connection)
    try:
        if kind == wire.DESCRIBE:
            begin_lines(json.loads(message["model_config"])["name"])
            connection.notify(wire.DESCRIBED, _auto_completed(message))
            return 0
        name = message["args"]["model_instance_name"]
        begin_lines(name)
        memory = message["memory"]
        connection.enable_calls(
            name,
            reader.start_thread,
            executions.caller_context,
            RequestSegmentPool(*memory) if memory is not None else None,
        )
        reader.add_handlers({wire.CALL_RESPONSE: connection.on_call_response})
        runner = ModelRunner(
            _initialized_model(message),
            name,
            decoupled=message["decoupled"],
            iterative=message["iterative"],
        )
        serving = Serving(connection, reader, executions, runner, stream_server)
    except BaseException as error:
        connection.notify(wire.FAILED, error_text(error))
        return 1
    connection.notify(wire.INITIALIZED, runner.has_is_ready)
    serving.run()
    atexit._run_exitfuncs()
    connection.notify(wire.FINALIZED, None)
    return 0


def _model_class(message: dict[str, Any]) -> Any:
    path = Path(message["version_path"])
    file = path / message["filename"]
    if not file.is_file():
        raise FileNotFoundError(f"Python model file not found in '{file}'")
    # The file is a module of the version's folder, so that its relative imports work.
    sys.path += [str(path), str(path.parent)]
    module = importlib.import_module(f"{path.name}.{file.stem}")
    if not hasattr(module, "TritonPythonModel"):
        raise AttributeError(f"Python model file '{file}' has no class TritonPythonModel")
    return module.TritonPythonModel


def _auto_completed(message: dict[str, Any]) -> Any:
    model_class = _model_class(message)
    if not hasattr(model_class, "auto_complete_config"):
        return None
    completed = model_class.auto_complete_config(ModelConfig(message["model_config"]))
    if not isinstance(completed, ModelConfig):
        name = json.loads(message["model_config"])["name"]
        raise ModelMisuse(
            f"auto_complete_config function in model '{name}' must return a valid "
            "pb.ModelConfig object."
        )
    return completed.as_dict()


def _initialized_model(message: dict[str, Any]) -> Any:
    model_class = _model_class(message)
    model = model_class()
    if not hasattr(model, "execute"):
        path = Path(message["version_path"]) / message["filename"]
        raise AttributeError(f"Python model {path} does not implement `execute` method.")
    if hasattr(model, "initialize"):
        model.initialize(message["args"])
    return model
