"""Requests of clients while a test looks at the console."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.mesh.mesh import Mesh

# Leaves the console its share of a small machine.
_PAUSE_S = 0.002


@contextlib.contextmanager
def traffic(mesh: Mesh, *groups: Sequence[str]) -> Iterator[None]:
    """Requests of eight numbers for a block: one client per group of models, to which it sends one
    request after another.
    """
    ended = threading.Event()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}
    body = json.dumps({"inputs": [tensor]})

    def send(models: Sequence[str]) -> None:
        connection = HTTPConnection(mesh.http, timeout=20)
        while True:
            for model in models:
                try:
                    connection.request("POST", f"/v2/models/{model}/infer", body)
                    connection.getresponse().read()
                except (OSError, HTTPException):
                    connection.close()
                if ended.wait(_PAUSE_S):
                    connection.close()
                    return

    threads = [threading.Thread(target=send, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
