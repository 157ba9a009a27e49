"""Requests, closed loops of clients, and the loop without a server."""

import base64
import json
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from benchmarks.embeddings.texts import DECIDER, NAME, Pair
from benchmarks.failure import BenchError
from benchmarks.process import ServerProcess

Text = str | Pair

_START_S = 180
# The one with the lowest CPU time per token for these lengths, of 1 to 64.
_BATCH_SIZE = 16


@dataclass(frozen=True)
class Run:
    """What a measurement gave. cpu_s: of all processes of the server."""

    texts: int
    tokens: int
    seconds: float
    cpu_s: float
    latencies_ms: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time of a token in microseconds."""
        return self.cpu_s / self.tokens * 1e6

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the calls' latency."""
        return float(np.percentile(self.latencies_ms, 99))


def await_server(port: int, server: ServerProcess, text: str) -> None:
    """Wait until a server embeds a text."""
    deadline = time.monotonic() + _START_S
    while True:
        try:
            embed(port, [text])
        except (OSError, BenchError, json.JSONDecodeError):
            server.require_alive()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def embed(port: int, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return a server's vectors of texts."""
    data = sorted(_ask(port, embedding_request(texts))["data"], key=lambda each: each["index"])
    return np.array([np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in data])


def decide(port: int, pairs: Sequence[Pair]) -> np.ndarray[Any, Any]:
    """Return a server's probabilities of questions about an input."""
    response = _ask(port, decision_request(pairs))
    return np.array([each["probability"] for each in response["answers"]])


def embedding_request(texts: Sequence[str]) -> bytes:
    """Return the bytes of a request for vectors."""
    body = {"model": NAME, "input": list(texts), "encoding_format": "base64"}
    return _request("/v1/embeddings", body)


def decision_request(pairs: Sequence[Pair]) -> bytes:
    """Return the bytes of a request with questions about the first pair's input."""
    questions = [{"type": "predicate", "instructions": question} for _, question in pairs]
    body = {"model": DECIDER, "input": pairs[0][0], "questions": questions}
    return _request("/v1/decisions", body)


def _request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _ask(port: int, request: bytes) -> Any:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        return json.loads(read_response(connection.makefile("rb")))


def run_clients(
    port: int,
    server: ServerProcess,
    calls: Sequence[tuple[bytes, int, int]],
    clients: int,
    seconds: float,
) -> Run:
    """Run closed loops, each on its own connection. calls: bytes, texts and tokens of each."""
    loops = [
        _Client(port, [*calls[at:], *calls[:at]])
        for at in (number * len(calls) // clients for number in range(clients))
    ]
    cpu_s, began = cpu_of(server), time.perf_counter()
    for loop in loops:
        loop.start()
    time.sleep(seconds)
    for loop in loops:
        loop.stopping = True
    for loop in loops:
        loop.join()
    taken_s = time.perf_counter() - began
    if failed := [loop.error for loop in loops if loop.error is not None]:
        raise failed[0]
    return Run(
        sum(loop.texts for loop in loops),
        sum(loop.tokens for loop in loops),
        taken_s,
        cpu_of(server) - cpu_s,
        tuple(each for loop in loops for each in loop.latencies_ms),
    )


def cpu_of(server: ServerProcess) -> float:
    """Return the CPU seconds of all threads of a server, exact to the nanosecond."""
    used_ns = 0
    for pid in server.processes():
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            used_ns += int(path.read_text().split()[0])
    return used_ns / 1e9


class _Client(threading.Thread):
    def __init__(self, port: int, calls: Sequence[tuple[bytes, int, int]]) -> None:
        super().__init__(daemon=True)
        self._calls = calls
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stopping = False
        self.texts = self.tokens = 0
        self.latencies_ms: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Send calls until the end is signalled."""
        number = 0
        try:
            with self._connection, self._connection.makefile("rb") as responses:
                while not self.stopping:
                    request, texts, tokens = self._calls[number % len(self._calls)]
                    began = time.perf_counter()
                    self._connection.sendall(request)
                    read_response(responses)
                    self.latencies_ms.append((time.perf_counter() - began) * 1e3)
                    self.texts += texts
                    self.tokens += tokens
                    number += 1
        except Exception as error:
            self.error = error


def read_response(stream: Any) -> bytes:
    """Read a response, and return its body; raise BenchError if it has not succeeded."""
    status, length = stream.readline(), 0
    while (line := stream.readline().lower()) not in (b"\r\n", b""):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body: bytes = stream.read(length)
    if not status.startswith(b"HTTP/1.1 200") or len(body) < length:
        raise BenchError((status + body).decode(errors="replace")[:500])
    return body


class BareLoop:
    """Tokenizer and model without a server: batches of similar lengths, in one thread."""

    def __init__(self, folder: Path, texts: Sequence[Text], output: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        (path,) = folder.glob("**/model.onnx")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._output = output
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding()
        # The file has a limit of 128 tokens, which no server takes from there.
        self._tokenizer.no_truncation()
        lengths = [sum(each.attention_mask) for each in self._tokenizer.encode_batch(list(texts))]
        self._texts = [texts[index] for index in np.argsort(lengths, kind="stable")]

    def outputs(self, texts: Sequence[Text]) -> np.ndarray[Any, Any]:
        """Return the model's output for each text, one at a time."""
        return np.concatenate([self._infer([text])[0] for text in texts])

    def run(self, seconds: float) -> Run:
        """Run batches of similar lengths, in random order, for some seconds."""
        begins = np.random.default_rng(5).permutation(range(0, len(self._texts), _BATCH_SIZE))
        texts = tokens = number = 0
        cpu_s, began = time.thread_time(), time.perf_counter()
        while time.perf_counter() - began < seconds:
            begin = int(begins[number % len(begins)])
            batch = self._texts[begin : begin + _BATCH_SIZE]
            tokens += self._infer(batch)[1]
            texts += len(batch)
            number += 1
        taken_s = time.perf_counter() - began
        return Run(texts, tokens, taken_s, time.thread_time() - cpu_s, ())

    def _infer(self, texts: Sequence[Text]) -> tuple[np.ndarray[Any, Any], int]:
        encodings = self._tokenizer.encode_batch(list(texts))
        mask = np.array([each.attention_mask for each in encodings], np.int64)
        feeds = {
            "input_ids": np.array([each.ids for each in encodings], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([each.type_ids for each in encodings], np.int64),
        }
        (found,) = self._session.run([self._output], feeds)
        return found, int(mask.sum())
