"""Writes model repositories: of decorated functions, `.onnx` files and folders of models."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format, text_format

from nereid.app.loading import application_files, place_of, root_of
from nereid.app.model import Model
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.app.tensor import Tensor

# Parameters of a configuration: the BYTES tensors that are str in the function, and the tensors of
# one element that are Python values there.
TEXT: Final = "text_tensors"
SCALAR: Final = "scalar_tensors"
# Parameter of the Python backend that this package has no use for: nereid is not in that Python.
_ENVIRONMENT: Final = "EXECUTION_ENV_PATH"
# Directory of a saved version with the application's files.
_APPLICATION: Final = "application"
_PICKLE: Final = "model.pkl"
_MODEL_PY: Final = """\
from nereid.app.worker import load

TritonPythonModel = load(__file__, {arguments})
"""


# To type checkers a decorated class is still a class.
Source = Model | type[Any] | str | Path


class SourceError(ValueError):
    """Something that is to be served is no model, or cannot be written."""


def write_models(root: Path, sources: Iterable[Source], *, complete: bool = False) -> list[str]:
    """Write models below a directory and return their names.

    complete: the repository has all files; otherwise it refers to those of the application, as a
    repository of this machine may. Raise SourceError if a source is no model.
    """
    named: list[tuple[str, Model | Path]] = []
    for source in sources:
        if isinstance(source, Model):
            named.append((source.name, source))
        elif callable(source):
            raise SourceError(f"{source!r} is no model: write @nereid.model above it")
        else:
            named += _models_of(Path(source).resolve())
    names = [name for name, _ in named]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SourceError(f"two models have the name '{twice.pop()}': give one another name")
    if not names:
        raise SourceError("there is no model to serve")
    root.mkdir(parents=True, exist_ok=True)
    for name, each in named:
        if isinstance(each, Model):
            write_model(root, each, complete=complete)
        elif each.is_dir():
            _copy_or_link(each, root / name, complete=complete)
        else:
            version = root / name / "1"
            version.mkdir(parents=True, exist_ok=True)
            _copy_or_link(each, version / "model.onnx", complete=complete)
    return names


def write_model(root: Path, model: Model, *, complete: bool = False) -> None:
    """Write a decorated function's configuration and `model.py`; raise SourceError."""
    version = root / model.name / "1"
    if version.parent.exists():
        _remove_written(version.parent)
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config_text(model))
    place = place_of(model)
    if place is None:
        arguments: list[str] = [_PICKLE]
        (version / _PICKLE).write_bytes(_pickled(model))
    elif complete:
        base = root_of(place.file)
        for file in application_files(place.file):
            copy = version / _APPLICATION / file.relative_to(base)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        arguments = [f"{_APPLICATION}/{place.file.relative_to(base).as_posix()}", place.name]
    else:
        arguments = [str(place.file), place.name]
    text = _MODEL_PY.format(arguments=", ".join(f'"{each}"' for each in map(_escaped, arguments)))
    (version / "model.py").write_text(text)


def config_text(model: Model) -> str:
    """Return a model's config.pbtxt; raise SourceError if its config= has an unknown field."""
    tensors = {**model.signature.inputs, **model.signature.outputs}
    config: dict[str, Any] = {
        "name": model.name,
        "backend": "python",
        "max_batch_size": model.max_batch_size,
        "input": [_tensor(*item) for item in model.signature.inputs.items()],
        "output": [_tensor(*item) for item in model.signature.outputs.items()],
    }
    if model.max_batch_size:
        delay = model.max_delay_us
        config["dynamic_batching"] = {"max_queue_delay_microseconds": delay} if delay else {}
    if model.instances > 1:
        config["instance_group"] = [{"count": model.instances}]
    if model.streams:
        config["model_transaction_policy"] = {"decoupled": True}
    if model.cache:
        config["response_cache"] = {"enable": True}
    marked = {
        TEXT: [name for name, tensor in tensors.items() if tensor.is_text],
        SCALAR: [name for name, tensor in tensors.items() if tensor.is_scalar],
    }
    config["parameters"] = {
        key: {"string_value": ",".join(names)} for key, names in marked.items() if names
    }
    message = model_config_pb2.ModelConfig()
    try:
        json_format.ParseDict(config, message)
        extra = json_format.ParseDict(model.config, model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        raise SourceError(f"model '{model.name}': config=: {error}") from error
    if _ENVIRONMENT in extra.parameters:
        raise SourceError(
            f"model '{model.name}': config=: {_ENVIRONMENT}: functions run in the Python that"
            " serves them: install their packages there, or write a model.py"
        )
    for field, _ in extra.ListFields():
        if field.name != "parameters":
            # A field of config= replaces the one that follows from the function.
            message.ClearField(field.name)
    message.MergeFrom(extra)
    text_of: str = text_format.MessageToString(message)
    return text_of


def _tensor(name: str, tensor: Tensor) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": name,
        "data_type": CONFIG_NUMBER[tensor.datatype],
        "dims": list(tensor.dims),
    }
    if tensor.is_optional:
        written["optional"] = True
    return written


def _remove_written(folder: Path) -> None:
    file = folder / "1" / "model.py"
    if not file.is_file() or not file.read_text().startswith(_MODEL_PY.partition("\n")[0]):
        raise SourceError(f"{folder} exists and is none of these models: give another path")
    shutil.rmtree(folder)


def _pickled(model: Model) -> bytes:
    try:
        import cloudpickle  # noqa: PLC0415 - an extra
    except ImportError:
        raise SourceError(
            f"model '{model.name}' is not at the top level of a file: move it to one, or"
            " pip install 'nereid-mesh[notebook]', which sends functions of notebooks"
        ) from None
    module = sys.modules.get(model.target.__module__)
    # Workers may not be able to import the module that defines it.
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(model)
    except Exception as error:
        raise SourceError(f"model '{model.name}' cannot be sent: {error}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _models_of(path: Path) -> list[tuple[str, Model | Path]]:
    """Return the models of a path, by name; raise SourceError if it is none and has none."""
    if path.is_file() and path.suffix == ".onnx":
        return [(path.stem, path)]
    if path.is_dir() and _is_model(path):
        return [(path.name, path)]
    children = sorted(filter(_is_model, path.iterdir())) if path.is_dir() else []
    if not children:
        raise SourceError(
            f"{path} is no model: give a decorated function, an .onnx file, a model's folder or a"
            " repository"
        )
    return [(child.name, child) for child in children]


def _is_model(path: Path) -> bool:
    return path.is_dir() and (
        (path / "config.pbtxt").is_file() or any(each.name.isdecimal() for each in path.iterdir())
    )


def _copy_or_link(path: Path, target: Path, *, complete: bool) -> None:
    if not complete:
        target.symlink_to(path)
    elif path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, target)
