"""Wire clients against the mock server, and against servers that misbehave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from nereid.pb import kserve_pb2 as pb
from nereid_perf.endpoint import Endpoint, Protocol, TlsSettings
from nereid_perf.inputs.plan import InputPlan
from nereid_perf.inputs.source import make_source
from nereid_perf.mock.model import FAILURE, MockModel
from nereid_perf.mock.server import MockServer
from nereid_perf.mock.service_times import ServiceTimes
from nereid_perf.plan import Plan, Workload
from nereid_perf.request import Request
from nereid_perf.wire.client import PendingRequest, WireClient
from nereid_perf.wire.clients import new_client
from tests.support.peers.certificates import Authority

_MS = 1_000_000
_ANYWHERE = ("127.0.0.1", 0), ("127.0.0.1", 0)
_HTTP = Request(b'{"inputs":[]}')
_GRPC = Request(pb.ModelInferRequest(model_name="any").SerializeToString())


class Site:
    """A client, and how its requests ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ended: dict[PendingRequest, str] = {}
        self._changed = asyncio.Event()
        self.client: WireClient = new_client(plan, self._on_end)

    def send(self, number: int = 1) -> list[PendingRequest]:
        request = _HTTP if self.plan.endpoint.protocol == "http" else _GRPC
        return [self.client.send(request, 1) for _ in range(number)]

    async def outcomes(self, sent: list[PendingRequest]) -> list[str]:
        async with asyncio.timeout(20):
            while not self.ended.keys() >= set(sent):
                self._changed.clear()
                await self._changed.wait()
        return [self.ended[each] for each in sent]

    def _on_end(self, pending: PendingRequest, error: str) -> None:
        assert pending not in self.ended, "it ended twice"
        self.ended[pending] = error
        self._changed.set()


def _plan(protocol: Protocol, address: str, **options: Any) -> Plan:
    options.setdefault("tls", None)
    endpoint = Endpoint(protocol, address, options.pop("tls"), (("x-any", "thing"),))
    return Plan(
        endpoint=endpoint,
        workloads=(Workload("any"),),
        make_source=partial(make_source, InputPlan("http")),
        connect_timeout_s=10,
        **options,
    )


@asynccontextmanager
async def _running(
    server: MockServer, tls: TlsSettings | None = None
) -> AsyncIterator[dict[str, str]]:
    """The addresses by protocol."""
    http, grpc = await server.listen(*_ANYWHERE, tls)
    try:
        yield {"http": http, "grpc": grpc}
    finally:
        await server.close()


@asynccontextmanager
async def _site(plan: Plan, in_flight: int = 1) -> AsyncIterator[Site]:
    site = Site(plan)
    try:
        await site.client.open(in_flight)
        yield site
    finally:
        await site.client.close()


KINDS = {
    "http": partial(_plan, "http"),
    "grpc": partial(_plan, "grpc"),
    "stream": partial(_plan, "grpc", streaming=True),
    "decoupled": partial(_plan, "grpc", streaming=True, decoupled=True),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def _kind(kind: str, addresses: dict[str, str], **options: Any) -> Plan:
    return KINDS[kind](addresses["http" if kind == "http" else "grpc"], **options)


@kinds
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
async def test_requests_succeed_with_all_their_times(kind: str, compression: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(2 * _MS))
    async with (
        _running(server) as addresses,
        _site(_kind(kind, addresses, compression=compression), 20) as site,
    ):
        sent = site.send(20)
        assert await site.outcomes(sent) == [""] * 20
    for each in sent:
        assert 0 < each.sent_ns < each.first_ns <= each.last_ns
        assert each.last_ns - each.sent_ns >= 2 * _MS
        assert each.responses == 1
    assert server.model.counts.requests == 20


async def test_a_stream_of_text_has_a_first_token_and_its_usage() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    usage = b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}'
    events = [b'{"choices":[{"delta":{"content":"%b"}}]}' % text for text in (b"", b"a", b"b")]

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(head)
        for event in (*events, usage, b"[DONE]"):
            writer.write(b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event))
        writer.write(b"0\r\n\r\n")
        await reader.read()
        writer.close()

    requests: list[bytes] = []
    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, _site(_plan("http", f"{host}:{port}", path="/v1/chat/completions")) as site:
        (sent,) = site.send()
        assert await site.outcomes([sent]) == [""]
    assert requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert (sent.responses, sent.input_tokens, sent.output_tokens) == (2, 4, 2)
    assert 0 < sent.first_ns <= sent.last_ns


@kinds
async def test_more_than_there_are_connections_for_get_some(kind: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(_MS))
    async with (
        _running(server) as addresses,
        _site(_kind(kind, addresses, streams_per_connection=2)) as site,
    ):
        assert await site.outcomes(site.send(50)) == [""] * 50


@kinds
async def test_what_the_server_refuses_fails_with_its_text(kind: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(0), fail_percent=100)
    async with _running(server) as addresses, _site(_kind(kind, addresses), 3) as site:
        outcomes = await site.outcomes(site.send(3))
        assert all(FAILURE in each for each in outcomes)
        assert outcomes[0].startswith({"http": "HTTP 500", "grpc": "INTERNAL"}.get(kind, FAILURE))
        # The connection still serves.
        assert FAILURE in (await site.outcomes(site.send()))[0]


@kinds
async def test_a_cancelled_request_ends_silently_and_others_go_on(kind: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(20 * _MS))
    async with (
        _running(server) as addresses,
        _site(_kind(kind, addresses, cancel_percent=1), 2) as site,
    ):
        cancelled, kept = site.send(2)
        while not cancelled.sent_ns:
            await asyncio.sleep(0)
        site.client.cancel(cancelled)
        assert await site.outcomes([kept]) == [""]
        assert await site.outcomes(site.send(4)) == [""] * 4
        assert cancelled not in site.ended


@kinds
async def test_one_that_waits_for_a_connection_is_cancelled_before_it_is_sent(kind: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(0))
    async with (
        _running(server) as addresses,
        _site(_kind(kind, addresses, streams_per_connection=1)) as site,
    ):
        first, waiting = site.send(2)
        assert not waiting.sent_ns
        site.client.cancel(waiting)
        assert await site.outcomes([first]) == [""]
        assert await site.outcomes(site.send()) == [""]
    assert server.model.counts.requests == 2


@kinds
async def test_without_a_server_open_says_so_and_requests_fail(kind: str) -> None:
    async with _running(MockServer(MockModel(), ServiceTimes(0))) as addresses:
        plan = _kind(kind, addresses)
    site = Site(plan)
    try:
        with pytest.raises(OSError, match=r"cannot connect to 127\.0\.0\.1"):
            await site.client.open(1)
        (outcome,) = await site.outcomes(site.send())
        assert outcome.startswith("cannot connect to")
    finally:
        await site.client.close()


@kinds
async def test_requests_of_a_server_that_ends_fail_and_its_successor_serves(kind: str) -> None:
    server = MockServer(MockModel(), ServiceTimes(10_000 * _MS))
    addresses = dict(zip(("http", "grpc"), await server.listen(*_ANYWHERE), strict=True))
    site = Site(_kind(kind, addresses))
    await site.client.open(2)
    sent = site.send(2)
    while server.model.counts.requests < 2:
        await asyncio.sleep(0.001)
    await server.close()
    assert all(await site.outcomes(sent))
    host, port = addresses["http" if kind == "http" else "grpc"].split(":")
    where = (host, int(port))
    successor = MockServer(MockModel(), ServiceTimes(0))
    await successor.listen(*((where, None) if kind == "http" else (None, where)))
    try:
        while await site.outcomes(site.send()) != [""]:
            pass
    finally:
        await site.client.close()
        await successor.close()


@pytest.mark.parametrize(("responses", "gaps"), [(1, None), (3, 2)])
async def test_a_decoupled_request_ends_with_its_last_response(
    responses: int, gaps: int | None
) -> None:
    server = MockServer(MockModel(responses=responses), ServiceTimes(0), between_ns=2 * _MS)
    async with _running(server) as addresses, _site(_kind("decoupled", addresses), 4) as site:
        sent = site.send(4)
        assert await site.outcomes(sent) == [""] * 4
    for each in sent:
        assert each.responses == responses
        assert (each.between and len(each.between)) == gaps
        assert all(gap >= _MS for gap in each.between or ())


async def test_a_decoupled_request_may_have_no_response_at_all() -> None:
    server = MockServer(MockModel(responses=0), ServiceTimes(0))
    async with _running(server) as addresses, _site(_kind("decoupled", addresses)) as site:
        (sent,) = site.send()
        assert await site.outcomes([sent]) == [""]
    assert (sent.responses, sent.first_ns) == (0, 0)
    assert sent.last_ns > sent.sent_ns


@kinds
@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(kind: str, mutual: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = authority.identity(files="server")
    theirs = authority.identity("client", files="client")
    tls = TlsSettings(authority.root if mutual else "", ours.cert, ours.key)
    server = MockServer(MockModel(), ServiceTimes(0))
    async with _running(server, tls) as addresses:
        known = TlsSettings(authority.root, theirs.cert, theirs.key)
        async with _site(_kind(kind, addresses, tls=known), 2) as site:
            assert await site.outcomes(site.send(4)) == [""] * 4
        if mutual:
            # TLS 1.3 refuses a client only after its part of the handshake is over.
            unknown = Site(_kind(kind, addresses, tls=TlsSettings(authority.root)))
            try:
                await unknown.client.open(1)
                assert (await unknown.outcomes(unknown.send()))[0]
            except OSError:
                pass
            finally:
                await unknown.client.close()
        strangers = Authority(tmp_path / "strangers")
        wrong = Site(_kind(kind, addresses, tls=TlsSettings(strangers.root)))
        with pytest.raises(OSError, match="certificate"):
            await wrong.client.open(1)
        await wrong.client.close()


@pytest.mark.parametrize("kind", ["http", "grpc", "stream"])
async def test_responses_are_kept_where_they_are_checked(kind: str) -> None:
    async with (
        _running(MockServer(MockModel(size=3), ServiceTimes(0))) as addresses,
        _site(_kind(kind, addresses, checks_responses=True)) as site,
    ):
        (sent,) = site.send()
        assert await site.outcomes([sent]) == [""]
    if kind == "http":
        assert sent.message[sent.json_bytes :] == bytes(12)
    else:
        response = pb.ModelInferResponse.FromString(sent.message)
        assert response.raw_output_contents == [bytes(12)]


# --- HTTP servers that misbehave


class Scripted(asyncio.Protocol):
    """Responds to each request with these pieces, each in a turn of its own."""

    def __init__(self, pieces: tuple[bytes, ...], close: bool) -> None:
        self._pieces = pieces
        self._close = close
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(_HTTP.message):
            self._received = b""
            self._respond(0)

    def _respond(self, at: int) -> None:
        if at < len(self._pieces):
            self._transport.write(self._pieces[at])
            asyncio.get_running_loop().call_soon(self._respond, at + 1)
        elif self._close:
            self._transport.close()


@asynccontextmanager
async def _scripted(*pieces: bytes, close: bool = False) -> AsyncIterator[str]:
    """Its address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Scripted(pieces, close), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


_OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "close", "outcome"),
    [
        ((_OK + b"Content-Length: 4\r\n\r\nab", b"cd"), False, ""),
        ((_OK, b"Content-Length: 4\r\n\r\n", b"abcd"), False, ""),
        ((_OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", b"0\r\n\r\n"), False, ""),
        ((_OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n",), True, ""),
        ((b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate",), False, "HTTP 503: late"),
        ((b"what?\r\n\r\n",), False, "not HTTP"),
        ((_OK + b"Content-Length: 4\r\n\r\nab",), True, "connection lost"),
        ((), True, "connection lost"),
    ],
)
async def test_http_responses_of_any_kind(
    pieces: tuple[bytes, ...], close: bool, outcome: str
) -> None:
    async with _scripted(*pieces, close=close) as address, _site(_plan("http", address), 2) as site:
        for _ in range(3):
            for each in await site.outcomes(site.send(2)):
                assert each.startswith(outcome)
                assert bool(each) == bool(outcome)


async def test_a_server_that_does_not_speak_http2_is_no_grpc_server() -> None:
    async with _scripted() as address:
        site = Site(replace(_plan("grpc", address), connect_timeout_s=0.2))
        with pytest.raises(OSError, match="timed out"):
            await site.client.open(1)
        await site.client.close()
