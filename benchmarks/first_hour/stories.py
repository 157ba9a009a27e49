"""The stories as each server's documentation tells them: commands, requests, names to know.

The files that a user writes are in files/SERVER/STORY. Every server serves the same: values times
two, also as a model.onnx that is there, and running sums by means of two packages.
"""

import json
from dataclasses import dataclass, field
from typing import Final

STORIES: Final = {
    "function": "a function to an endpoint",
    "test": "a pytest test of it",
    "onnx": "an ONNX file",
    "packages": "two packages of its own",
    "image": "production image of it",
}
# Stories that begin with the files of another one.
BASE: Final = {"test": "function", "image": "function"}
VALUES: Final = [1.5, 2.5]
# Parts of the right responses, without spaces.
EXPECTED: Final = {
    "function": b"[3.0,5.0]",
    "onnx": b"[3.0,5.0]",
    "packages": b"[0.0,2.5]",
}
_INSTALL: Final = "uv pip install -r requirements.txt"


@dataclass(frozen=True)
class Story:
    """One story with one server."""

    commands: tuple[str, ...]
    # Names of the server's own that its user has to know: API, commands, settings, files.
    concepts: tuple[str, ...]
    url: str = ""
    body: str = ""


@dataclass(frozen=True)
class Server:
    """A server; requirements: none if this environment has it."""

    name: str
    requirements: tuple[str, ...] = ()
    stories: dict[str, Story] = field(default_factory=dict)


def _kserve(model: str, *shape: int) -> tuple[str, str]:
    tensor = {"name": "x", "shape": [*shape, 2], "datatype": "FP32", "data": VALUES}
    return f"http://localhost:8000/v2/models/{model}/infer", json.dumps({"inputs": [tensor]})


_NEREID: Final = {
    "function": Story(
        ("nereid run app.py",), ("@nereid.model", "nereid.Tensor", "nereid run"), *_kserve("double")
    ),
    "test": Story(("python -m pytest",), ("nereid_mesh", "client[name]")),
    "onnx": Story(("nereid run model.onnx",), ("nereid run",), *_kserve("model", 1)),
    "packages": Story(
        ("nereid run running",),
        (
            *("config.pbtxt", "NAME/1/model.py", "PEP 723 lines", "TritonPythonModel", "execute"),
            *("get_input_tensor_by_name", "as_numpy", "Tensor", "InferenceResponse", "nereid run"),
        ),
        *_kserve("running"),
    ),
    "image": Story(
        ("python save.py", "docker build -t double ."),
        ("nereid.serve", "mesh.save", "nereid-serve", "nereid check", "--model-repository"),
    ),
}
_LITSERVE_API: Final = ("LitAPI", "setup", "predict", "LitServer", "run")
_LITSERVE_URL: Final = "http://localhost:8000/predict"
_LITSERVE: Final = {
    "function": Story(
        ("python server.py",), _LITSERVE_API, _LITSERVE_URL, json.dumps({"x": VALUES})
    ),
    "test": Story(("python -m pytest",), ("wrap_litserve_start", "server.app", "/predict")),
    "onnx": Story(("python server.py",), _LITSERVE_API, _LITSERVE_URL, json.dumps({"x": [VALUES]})),
    "packages": Story(
        (_INSTALL, "python server.py"), _LITSERVE_API, _LITSERVE_URL, json.dumps({"x": VALUES})
    ),
    "image": Story(
        ("litserve dockerize server.py", "docker build -t double ."), ("litserve dockerize",)
    ),
}
_PYTRITON_API: Final = ("Triton", "bind", "model_name", "infer_func", "inputs", "outputs", "Tensor")
_PYTRITON: Final = {
    "function": Story(
        ("python server.py",), (*_PYTRITON_API, "@batch", "serve"), *_kserve("double", 1)
    ),
    "test": Story(("python -m pytest",), ("run", "ModelClient", "infer_sample")),
    "onnx": Story(("python server.py",), (*_PYTRITON_API, "@batch", "serve"), *_kserve("onnx", 1)),
    "packages": Story(
        (_INSTALL, "python server.py"),
        (*_PYTRITON_API, "@sample", "ModelConfig", "batching", "serve"),
        *_kserve("running"),
    ),
    "image": Story(("docker build -t double .",), ("nvidia-pytriton",)),
}
_BENTOML_API: Final = ("@bentoml.service", "@bentoml.api", "bentoml serve")
_BENTOML: Final = {
    "function": Story(
        ("bentoml serve",), _BENTOML_API, "http://localhost:3000/double", json.dumps({"x": VALUES})
    ),
    "test": Story(("python -m pytest",), ("to_asgi", "/double")),
    "onnx": Story(
        ("bentoml serve",), _BENTOML_API, "http://localhost:3000/infer", json.dumps({"x": [VALUES]})
    ),
    "packages": Story(
        (_INSTALL, "bentoml serve"),
        _BENTOML_API,
        "http://localhost:3000/running",
        json.dumps({"x": VALUES}),
    ),
    "image": Story(
        ("bentoml build", "bentoml containerize double:latest"),
        ("bentoml build", "bentoml containerize", "bento tags"),
    ),
}
SERVERS: Final = (
    Server("nereid", (), _NEREID),
    Server("litserve", ("litserve==0.2.19", "httpx"), _LITSERVE),
    Server("pytriton", ("nvidia-pytriton==0.7.0",), _PYTRITON),
    Server("bentoml", ("bentoml==1.4.40",), _BENTOML),
)
