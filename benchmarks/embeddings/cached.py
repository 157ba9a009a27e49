"""Time of a repeated text, whose row the cache has, beside a new one and a trivial route."""

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embeddings.load import await_server, embedding_request, read_response
from benchmarks.embeddings.peers import NEREID, command
from benchmarks.embeddings.texts import NAME, make_texts, write_embedder
from benchmarks.process import ServerProcess

_FLAGS = ("--cache-config=local,size=268435456",)
_MODELS = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
_ROUNDS = 500


def measure(models: Path, work: Path) -> None:
    """Serve MiniLM with a cache, and print the times of calls that take turns."""
    folder = write_embedder(work / "repository" / NAME, models, for_nereid=True)
    with (folder / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    texts, counts = make_texts(folder)
    text = texts[counts.index(int(np.median(counts)))]
    port, started = command(NEREID, work / "repository", work, work / "nereid.log", _FLAGS)
    with ServerProcess(started) as server:
        await_server(port, server, text)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _print_times(connection, text)


def _print_times(connection: socket.socket, text: str) -> None:
    requests = {
        "list of models": [_MODELS] * _ROUNDS,
        "repeated text": [embedding_request([text])] * _ROUNDS,
        "32 repeated texts": [embedding_request([f"{text} {n}" for n in range(32)])] * _ROUNDS,
        "new text": [embedding_request([f"{text} new {n}"]) for n in range(_ROUNDS)],
    }
    times: dict[str, list[float]] = {name: [] for name in requests}
    with connection.makefile("rb") as responses:
        for number in range(_ROUNDS):
            for name, each in requests.items():
                times[name].append(_time(connection, responses, each[number]))
    print("| call | least ms | p50 ms | p99 ms |\n| --- | ---: | ---: | ---: |")
    for name, own in times.items():
        # The first one of each is not cached.
        least, p50, p99 = np.percentile(own[1:], (0, 50, 99))
        print(f"| {name} | {least:.2f} | {p50:.2f} | {p99:.2f} |")


def _time(connection: socket.socket, responses: Any, request: bytes) -> float:
    began = time.perf_counter()
    connection.sendall(request)
    read_response(responses)
    return (time.perf_counter() - began) * 1e3
