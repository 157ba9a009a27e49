"""Clients that send an exact number of requests, so that all runs have the same work."""

import socket
from pathlib import Path

from benchmarks import load, wire
from benchmarks.failure import BenchError
from benchmarks.models import mlp

LOADS = ("grpc:1", "grpc:64", "http:1", "http:16", "http:64", "json:1", "json:64")


class Clients:
    """Clients of one mesh; close() ends the connections."""

    def __init__(self, address: wire.Address, work: Path) -> None:
        workload = mlp.workload(work)
        self._grpc = load.GrpcClient(address, work, wire.grpc_message(workload))
        self._port = address.http_port
        self._requests = {
            "http": _request(wire.http_body(workload)),
            "json": _request(wire.json_body(workload)),
        }
        self._sockets: list[socket.socket] = []

    def run(self, cell: str, requests: int) -> None:
        """Send requests.

        cell: one of LOADS, which is a protocol and a number of requests in flight.
        """
        protocol, _, text = cell.partition(":")
        concurrency = int(text)
        if protocol == "grpc":
            self._grpc.run(concurrency, requests)
            return
        request = self._requests[protocol]
        while len(self._sockets) < concurrency:
            self._sockets.append(socket.create_connection(("127.0.0.1", self._port)))
        for begun in range(0, requests, concurrency):
            used = self._sockets[: min(concurrency, requests - begun)]
            for client in used:
                client.sendall(request)
            for client in used:
                _read_response(client)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            connection.close()


def _request(body: wire.HttpBody) -> bytes:
    head = f"POST {body.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body.data)}\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in body.headers().items())
    return (head + fields + "\r\n").encode() + body.data


def _read_response(connection: socket.socket) -> None:
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _received(connection)
    head = data[:end].lower()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise BenchError(f"HTTP: {data[:300].decode(errors='replace')}")
    length = int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
    while len(data) < end + 4 + length:
        data += _received(connection)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise BenchError("the server closed a connection")
    return data
