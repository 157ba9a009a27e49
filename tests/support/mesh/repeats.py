"""Clients of a model that repeats: streams, events, and what their responses say."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as tritongrpc

from tests.support.mesh.mesh import Mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30


def inputs(mode: str, count: int, size: int = 0) -> list[tritongrpc.InferInput]:
    made = []
    for name, value in (("COUNT", count), ("SIZE", size)):
        made.append(tritongrpc.InferInput(name, [1], "INT32"))
        made[-1].set_data_from_numpy(np.array([value], np.int32))
    made.append(tritongrpc.InferInput("MODE", [1], "BYTES"))
    made[-1].set_data_from_numpy(np.array([mode.encode()], np.object_))
    return made


class Stream:
    """A tritonclient stream."""

    def __init__(self, mesh: Mesh, **options: Any) -> None:
        """options: of the stream."""
        self.client = tritongrpc.InferenceServerClient(mesh.grpc)
        self.got: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.got.put((result, error)), **options)

    def ask(self, model: str, mode: str, count: int, size: int = 0, **options: Any) -> None:
        self.client.async_stream_infer(model, inputs(mode, count, size), **options)

    def next(self) -> Any:
        """A response, or a failure's text."""
        result, error = self.got.get(timeout=LIMIT_S)
        return result.get_response() if error is None else error.message()

    def close(self, *, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


@contextlib.contextmanager
def stream(mesh: Mesh, **options: Any) -> Iterator[Stream]:
    with contextlib.closing(Stream(mesh, **options)) as made:
        yield made


def number_of(response: Any) -> int:
    return int(np.frombuffer(response.raw_output_contents[0], np.int32)[0])


def is_final(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)


@contextlib.contextmanager
def events(mesh: Mesh, model: str, **body: Any) -> Iterator[Iterator[Any]]:
    """Return the contents of the events, until the end."""
    with contextlib.closing(http.client.HTTPConnection(mesh.http, timeout=LIMIT_S)) as connection:
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body))
        with connection.getresponse() as response:
            assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
            yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))
