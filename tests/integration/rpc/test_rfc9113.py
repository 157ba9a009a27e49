"""h2 as a client that uses what RFC 9113 has for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from tests.support.rpc.echo_service import Site, serving
from tests.support.rpc.http2_frames import (
    message,
    to,
)
from tests.support.rpc.raw_peer import LIMIT_S


@pytest.fixture
async def site() -> Site:
    return Site()


@pytest.fixture
async def address(site: Site) -> AsyncIterator[str]:
    async with serving("own", site) as (_, real):
        yield real


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


class Speaker:
    """h2 as a client of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.data: dict[int, bytes] = {}
        self.headers: dict[int, dict[bytes, bytes]] = {}
        self.events: list[Any] = []

    def request(self, stream: int, path: str, **options: Any) -> None:
        self.h2.send_headers(stream, to(path), **options)

    async def until(self, kind: type[Any]) -> Any:
        """Talk until an event of this kind."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for event in self._found(kind):
                    return event
                self.writer.write(self.h2.data_to_send())
                data = await self.reader.read(65536)
                assert data, "the server ended the connection"
                for event in self.h2.receive_data(data):
                    self._on_event(event)

    def _found(self, kind: type[Any]) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, kind):
                self.events.remove(event)
                yield event

    def _on_event(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, h2.events.DataReceived):
            self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
            if event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            known = self.headers.setdefault(event.stream_id, {})
            known.update({_bytes(name): _bytes(value) for name, value in event.headers})


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@pytest.fixture
async def speaker(address: str) -> AsyncIterator[Speaker]:
    reader, writer = await connect(address)
    yield Speaker(reader, writer)
    writer.close()


async def test_h2_with_padding_priority_trailers_and_a_ping(speaker: Speaker) -> None:
    speaker.request(1, "/test/Echo", priority_weight=7, priority_depends_on=0)
    speaker.h2.send_data(1, message(b"padded"), pad_length=200)
    speaker.h2.send_headers(1, [("checksum", "1")], end_stream=True)
    speaker.h2.ping(b"12345678")
    await speaker.until(h2.events.StreamEnded)
    assert speaker.data[1] == message(b"padded")
    assert speaker.headers[1][b"grpc-status"] == b"0"
    assert (await speaker.until(h2.events.PingAckReceived)).ping_data == b"12345678"


async def test_h2_changes_its_settings_while_streams_are_open(speaker: Speaker) -> None:
    """The server's windows follow, up and down, and no byte is lost or sent too soon."""
    codes = h2.settings.SettingCodes
    speaker.h2.update_settings({codes.INITIAL_WINDOW_SIZE: 10})
    await speaker.until(h2.events.SettingsAcknowledged)
    body = bytes(range(256)) * 40
    for stream in (1, 3):
        speaker.request(stream, "/test/Echo")
        speaker.h2.send_data(stream, message(body), end_stream=True)
    await speaker.until(h2.events.DataReceived)
    for size in (3000, 0, 1, 70_000):
        speaker.h2.update_settings({codes.INITIAL_WINDOW_SIZE: size, codes.MAX_FRAME_SIZE: 20_000})
        await speaker.until(h2.events.SettingsAcknowledged)
    for _ in range(2):
        await speaker.until(h2.events.StreamEnded)
    assert speaker.data == {1: message(body), 3: message(body)}


async def test_h2_resets_and_leaves(speaker: Speaker, site: Site) -> None:
    speaker.request(1, "/test/Open")
    await speaker.until(h2.events.ResponseReceived)
    speaker.h2.reset_stream(1, 0x1234)
    speaker.request(3, "/test/Echo")
    speaker.h2.send_data(3, message(b"x"), end_stream=True)
    await speaker.until(h2.events.StreamEnded)
    assert site.cancelled.is_set()
    assert speaker.data == {3: message(b"x")}
    speaker.h2.close_connection()
    speaker.writer.write(speaker.h2.data_to_send())
    speaker.writer.write_eof()
    assert await asyncio.wait_for(speaker.reader.read(), LIMIT_S) == b""
