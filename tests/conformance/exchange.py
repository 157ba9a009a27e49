"""Sends one request as bytes to a server and returns its response as plain JSON data.

Raw sockets and raw gRPC messages, so that malformed ones can be sent too; the messages are read
with tritonclient's own classes. What differs from run to run (times, versions) is levelled.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2

RESPONSE_S: Final = 20.0
_HEADERS: Final = frozenset(
    {
        "content-type",
        "content-encoding",
        "inference-header-content-length",
        "accept-encoding",
    }
)
# Fields that depend on the backend or on the server's version, not of what a client asked.
_OWN: Final = frozenset({"backend", "platform", "default_model_filename"})
# What later versions report as well.
_LATER: Final = frozenset({"max_inflight_requests"})
_TIMES: Final = frozenset({"ns", "last_inference"})
_SERVICE: Final = "/inference.GRPCInferenceService/"
# What grpcio, not a server, says of a connection that cannot be made or broke.
_BROKEN: Final = ("onnect", "Socket closed", "Stream removed", "GOAWAY")


class NoResponseError(Exception):
    """The server closed the connection, or said nothing in time."""


@dataclass(frozen=True)
class Http:
    """One HTTP request on a connection of its own; raw: these bytes instead."""

    method: str = "GET"
    target: str = "/v2"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes = b""

    def content(self) -> bytes:
        if self.raw:
            return self.raw
        head = f"{self.method} {self.target} HTTP/1.1\r\nHost: test\r\n"
        names = {name.lower() for name, _ in self.headers}
        if self.method != "GET" and not names & {"content-length", "transfer-encoding"}:
            head += f"Content-Length: {len(self.body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        return head.encode("latin-1") + b"\r\n" + self.body


@dataclass(frozen=True)
class Rpc:
    """One gRPC call with one message, as an object or as bytes."""

    method: str
    message: Message | bytes
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stream:
    """One ModelStreamInfer: all messages, then the half-close."""

    messages: tuple[Message | bytes, ...]
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Region:
    """Not a request: makes a file of shared memory (size > 0), or reads and removes it."""

    key: str
    size: int = 0


@dataclass(frozen=True)
class Clear:
    """Unregisters all shared memory; again while a request that got a response still holds some."""


@dataclass(frozen=True)
class Page:
    """The metrics of families whose names begin so, once there is one with this in it."""

    prefix: str
    awaited: str = ""


@dataclass(frozen=True)
class Drained:
    """Not a request: one outcome of the server's end, by its name."""

    outcome: str


Step = Http | Rpc | Stream | Region | Clear | Page | Drained


class Process(Protocol):
    """A server's, as subprocess has it."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> int:
        """The exit code; raises TimeoutExpired."""


class Server:
    """Where to ask, and a channel to it. process: for those who end it."""

    def __init__(
        self, http_port: int, grpc_port: int, metrics_port: int = 0, process: Process | None = None
    ) -> None:
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.metrics_port = metrics_port
        self.process = process
        # What became of it, once it was ended.
        self._story: dict[str, Any] | None = None
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
            ]
            self._channel = grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}", options)
        return self._channel

    def close(self) -> None:
        """Also after the server's death: the next call dials anew."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def ask(self, step: Step) -> Any:
        """The response to one step.

        Raises:
            NoAnswerError: there was none.
        """
        match step:
            case Http():
                return _ask_http(self.http_port, step)
            case Rpc():
                return self._call(step)
            case Stream():
                return self._stream(step)
            case Region():
                return _region(step)
            case Clear():
                return self._clear()
            case Page():
                return self._page(step)
            case Drained():
                return self._drained(step)

    def _drained(self, step: Drained) -> Any:
        if self._story is None:
            # It is told with what is in this module.
            from tests.conformance.drain import story  # noqa: PLC0415

            self._story = story(self)
        return self._story[step.outcome]

    def _clear(self) -> Any:
        deadline = time.monotonic() + RESPONSE_S
        request = Http("POST", "/v2/systemsharedmemory/unregister")
        while (response := _ask_http(self.http_port, request))["status"] != 200:
            if time.monotonic() > deadline:
                return response
        return {}

    def _page(self, page: Page) -> Any:
        deadline = time.monotonic() + RESPONSE_S
        lines: list[str] = []
        while not any(page.awaited in each for each in lines) and time.monotonic() < deadline:
            text = _ask_http(self.metrics_port, Http(target="/metrics")).get("text", "")
            lines = [each for each in text.splitlines() if each.startswith(page.prefix)]
        return sorted(lines)

    def _call(self, rpc: Rpc) -> Any:
        path = rpc.method if rpc.method.startswith("/") else _SERVICE + rpc.method
        call: Any = self.channel.unary_unary(path)
        try:
            reply = call(_bytes(rpc.message), RESPONSE_S, metadata=rpc.metadata)
        except grpc.RpcError as error:
            return status_of(error)
        return {"code": "OK", "reply": decoded_message(reply, _reply_class(path))}

    def _stream(self, stream: Stream) -> Any:
        call: Any = self.channel.stream_stream(_SERVICE + "ModelStreamInfer")
        replies: list[Any] = []
        try:
            messages = map(_bytes, stream.messages)
            for reply in call(messages, RESPONSE_S, metadata=stream.metadata):
                response = decoded_message(reply, service_pb2.ModelStreamInferResponse)
                replies.append(response)
        except grpc.RpcError as error:
            return {**status_of(error), "replies": replies}
        return {"code": "OK", "replies": replies}


def dumped(responses: Any) -> str:
    """One text for one meaning: NaN is equal to itself, 1 is not 1.0."""
    return json.dumps(responses, sort_keys=True)


def _bytes(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString(deterministic=True)


def _reply_class(path: str) -> Callable[[], Message]:
    name = path.rpartition("/")[2]
    health = path.startswith("/grpc.health")
    kinds: dict[str, Callable[[], Message]] = vars(health_pb2 if health else service_pb2)
    return kinds[f"{'Health' * health}{name}Response"]


def decoded_message(content: bytes, kind: Callable[[], Message]) -> Any:
    message = kind()
    try:
        message.ParseFromString(content)
    except DecodeError:
        return {"undecodable": content.hex()}
    return level(MessageToDict(message, preserving_proto_field_name=True))


def status_of(error: grpc.RpcError) -> dict[str, Any]:
    """The code and details of a failed call.

    Raises:
        NoResponseError: no server has sent them.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or (
        code is grpc.StatusCode.UNAVAILABLE and any(words in details for words in _BROKEN)
    ):
        raise NoResponseError(details) from error
    return {"code": code.name, "details": error.details()}


def _ask_http(port: int, request: Http) -> Any:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=RESPONSE_S) as connection:
            return ask_http_on(connection, request)
    except OSError as error:
        raise NoResponseError(f"{type(error).__name__}: {error}") from error


def ask_http_on(connection: socket.socket, request: Http) -> Any:
    """The response to a request on an open connection.

    Raises:
        NoResponseError: there was none.
    """
    try:
        connection.sendall(request.content())
        return _read_response(connection, request.method)
    except (OSError, ValueError) as error:
        raise NoResponseError(f"{type(error).__name__}: {error}") from error


def _read_response(connection: socket.socket, method: str) -> Any:
    with connection.makefile("rb") as stream:
        line = stream.readline()
        if not line.endswith(b"\n"):
            raise NoResponseError("closed without an answer")
        status = int(line.split()[1])
        headers = {}
        while (field := stream.readline()).strip():
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if not field:
            raise NoResponseError("closed within an answer's headers")
        if method == "HEAD" or status == 204:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(_chunks(stream))
        elif "content-length" in headers:
            body = stream.read(size := int(headers["content-length"]))
            if len(body) < size:
                raise NoResponseError("closed within an answer's body")
        else:
            body = stream.read()
    kept = {name: value for name, value in headers.items() if name in _HEADERS}
    if not body:
        # Nothing has no type; servers differ in whether they name one all the same.
        kept.pop("content-type", None)
    length = kept.pop("inference-header-content-length", None)
    return {"status": status, **({"headers": kept} if kept else {}), **_body(body, kept, length)}


def _chunks(stream: Any) -> Iterable[bytes]:
    while (size := int(stream.readline(), 16)) > 0:
        yield stream.read(size)
        stream.readline()
    stream.readline()


def _body(body: bytes, headers: dict[str, str], length: str | None) -> dict[str, Any]:
    """The JSON part parsed, whatever follows as hexadecimal digits."""
    kind = headers.get("content-type", "")
    if "content-encoding" in headers:
        return {"compressed": bool(body)}
    if length is not None:
        end = int(length)
        return {"json": level(json.loads(body[:end])), "binary": body[end:].hex()}
    if kind.startswith("application/json") and body:
        try:
            return {"json": level(json.loads(body))}
        except ValueError:
            return {"text": body.decode("utf-8", "backslashreplace")}
    if kind == "application/octet-stream":
        return {"binary": body.hex()}
    return {"text": body.decode("utf-8", "backslashreplace")} if body else {}


def level(value: Any) -> Any:
    """The same value without what differs from run to run or from backend to backend."""
    if isinstance(value, list):
        return [level(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, each in value.items():
        if key in _LATER or (key in _OWN and isinstance(each, str)):
            continue
        if key in _TIMES and isinstance(each, str | int):
            found[key] = "some" if int(each) > 0 else "none"
        elif key == "version" and "extensions" in value:
            found[key] = "any"
        else:
            found[key] = level(each)
    return found


def _region(region: Region) -> Any:
    path = Path("/dev/shm", region.key.removeprefix("/"))
    if region.size:
        path.write_bytes(bytes(region.size))
        return {}
    content = path.read_bytes()
    path.unlink()
    return {"region": content.rstrip(b"\0").hex()}
