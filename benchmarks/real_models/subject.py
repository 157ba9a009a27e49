"""A subject: a model's files, requests to it, and the same work without a server.

This module must not know how a server is started or loaded.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime

Arrays = Mapping[str, npt.NDArray[Any]]
# Function that does the work of some inferences, and returns how many.
Run = Callable[[], int]

_DATATYPES = {"uint8": "UINT8", "int64": "INT64", "float32": "FP32"}


class Subject(Protocol):
    """A model, its requests and its bare loop; pickled for the process of the bare loop."""

    @property
    def name(self) -> str:
        """Name of the subject, and of the requested model."""

    @property
    def batched(self) -> str:
        """Name of the model whose executions are counted."""

    @property
    def peers(self) -> Sequence[str]:
        """Peers other than Nereid that can serve the model."""

    def write(self, repository: Path, peer: str) -> None:
        """Write the model repository of a peer."""

    def requests(self, client: int) -> Iterator[bytes]:
        """Yield a client's requests, one after the other, without end."""

    def open_bare(self, threads: int) -> Callable[[int], Run]:
        """Return a function that makes the loop with the same work, for a batch size."""


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open a session with this many threads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def http_request(
    model: str,
    feed: Arrays,
    outputs: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any] | None = None,
) -> bytes:
    """Return one HTTP request with binary tensors."""
    inputs = [
        {
            "name": name,
            "datatype": _DATATYPES[array.dtype.name],
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in feed.items()
    ]
    head: dict[str, Any] = {"inputs": inputs, "outputs": outputs}
    if parameters:
        head["parameters"] = parameters
    encoded = json.dumps(head).encode()
    body = encoded + b"".join(array.tobytes() for array in feed.values())
    return (
        b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (model.encode(), len(encoded), len(body))
    ) + body


def binary_output(name: str, **parameters: Any) -> dict[str, Any]:
    """Return the description of a binary output."""
    return {"name": name, "parameters": {"binary_data": True, **parameters}}


def one_after_the_other(runs: Sequence[Run]) -> Run:
    """Return a function that calls the next of these functions each time, in turn."""
    turn = itertools.cycle(runs)

    def run() -> int:
        return next(turn)()

    return run


def repeated(feed: Arrays, batch_size: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays, repeated to make a batch."""
    return {name: np.repeat(array, batch_size, 0) for name, array in feed.items()}


def write_config(folder: Path, config: str, *, instances: int = 1, threads: int = 1) -> None:
    """Write a configuration with instances on the CPU, each with this many threads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(
        f"{config}"
        f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"
        'parameters { key: "intra_op_thread_count"'
        f' value {{ string_value: "{threads}" }} }}\n'
    )
