"""The client's and the server's connection, talking to each other."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from nereid.rpc.grpc.client_connection import ClientConnection, ClientStream, request_block
from nereid.rpc.grpc.status import RpcError
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ServerHarness


class Talk:
    """Both roles, and bytes handed to and fro in cuts of any size."""

    def __init__(self, limits: Limits, cut: int) -> None:
        self.server = ServerHarness(limits, greet=False)
        self.connection = ClientConnection(limits, wake=lambda: None, on_stream_slot=lambda: None)
        self.cut = cut
        self.messages: dict[int, list[bytes]] = {}
        self.closes: dict[int, RpcError | None] = {}

    def call(self, name: int, path: str, bodies: list[bytes]) -> ClientStream:
        block = request_block(path, "h", ())
        self.messages[name] = []

        def on_close(error: RpcError | None) -> None:
            self.closes[name] = error

        stream = ClientStream(block, self.messages[name].append, on_close)
        self.connection.start(stream)
        for body in bodies:
            stream.send(body)
        stream.half_close()
        return stream

    def run(self) -> None:
        while True:
            up, down = self.connection.http2.data_to_send(), self.server.http2.data_to_send()
            if not up and not down:
                return
            self._hand(b"".join(up), self.server.http2.receive_data)
            self._hand(b"".join(down), self.connection.http2.receive_data)

    def _hand(self, data: bytes, receive: Callable[[bytes], bool]) -> None:
        for at in range(0, len(data), self.cut):
            receive(data[at : at + self.cut])


@settings_of(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 120_000), max_size=4), min_size=1, max_size=4),
    st.integers(1000, 70_000),
    st.sampled_from([65_536, 70_000, 200_000]),
)
def test_both_roles_talk_to_each_other(sizes: list[list[int]], cut: int, window: int) -> None:
    """Streams with bodies far above every window: all arrives, in order, and nothing is left."""
    limits = Limits(
        stream_window_bytes=window,
        connection_window_bytes=window + 5000,
        max_frame_bytes=16_384 + cut,
        trusts_peer=True,
    )
    talk = Talk(limits, cut)
    bodies = [[bytes([turn]) * size for turn, size in enumerate(each)] for each in sizes]
    for name, each in enumerate(bodies):
        talk.call(name, "/test/Chat", each)
    talk.run()
    assert list(talk.messages.values()) == bodies
    assert talk.closes == dict.fromkeys(range(len(bodies)))
    assert not talk.connection.streams
    assert not talk.server.connection.streams
