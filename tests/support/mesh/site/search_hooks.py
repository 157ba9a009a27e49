# mypy: ignore-errors
"""Search what clients of the tests' process receive for the pattern (../poison.py)."""

import socket

from tests.support.mesh.poison import searched


def _search_calls(module):
    """Messages of gRPC, whose library reads the connection, are searched before they are parsed."""

    def wrap(make):
        def make_call(channel, method, request_serializer=None, response_deserializer=None, **more):
            parse = response_deserializer or bytes
            return make(
                channel, method, request_serializer, lambda raw: parse(searched(raw)), **more
            )

        return make_call

    for name in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        setattr(module.Channel, name, wrap(getattr(module.Channel, name)))


def _search_gevent(module):
    """gevent's sockets are not Python's; NVIDIA's HTTP client has them."""
    _search_sockets(module.SocketMixin)


def _search_sockets(sockets):
    receive, receive_into = sockets.recv, sockets.recv_into

    def recv(self, *args, **more):
        return searched(receive(self, *args, **more))

    def recv_into(self, buffer, *args, **more):
        size = receive_into(self, buffer, *args, **more)
        searched(bytes(memoryview(buffer).cast("B")[:size]))
        return size

    sockets.recv, sockets.recv_into = recv, recv_into


# Every process has it already.
_search_sockets(socket.socket)
HOOKS = {
    "grpc._channel": _search_calls,
    "grpc.aio._channel": _search_calls,
    "gevent._socketcommon": _search_gevent,
}
