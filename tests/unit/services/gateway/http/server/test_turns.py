"""Many requests in one read are handled in turns of the loop; large bodies are not cut."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nereid.services.gateway.http.server.limits import HttpLimits
from tests.support.gateway.http_site import WAIT_S, HttpSite, read_response, request

if TYPE_CHECKING:
    from nereid.services.gateway.http.server.call import HttpCall

LIMITS = HttpLimits(max_body_bytes=1 << 22, max_pipelined=32)


class TurnCountingSite(HttpSite):
    """Notes in which turn of the loop each call came."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__(limits)
        self.turn = 0
        self.turns: list[int] = []

    def dispatch(self, call: HttpCall) -> None:
        if not self.turns or self.turns[-1] == self.turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.turns.append(self.turn)
        call.respond(200, (call.target, b" %d" % len(call.body)))

    def _next_turn(self) -> None:
        self.turn += 1


@pytest.mark.parametrize("same", [True, False], ids=["same heads", "different heads"])
@pytest.mark.parametrize("body", [0, 100, 20_000])
async def test_pipelined_requests_get_their_responses_in_order(
    site: HttpSite, *, same: bool, body: int
) -> None:
    reader, writer = await site.connect()
    number = 300 if body < 1000 else 40
    targets = ["/echo"] * number if same else [f"/echo/{each}" for each in range(number)]
    calls = [request(target, b"x" * body) for target in targets]
    writer.write(b"".join(calls))
    if same:
        for _ in range(number):
            status, _, got = await read_response(reader)
            assert (status, got) == (200, b"POST " + b"x" * body)
        return
    for target in targets:
        call = await site.next_call()
        assert call.target.decode() == target
        assert len(call.body) == body
        call.respond(200, (call.target,))
    for target in targets:
        assert (await read_response(reader))[2].decode() == target


@pytest.mark.parametrize("same", [True, False], ids=["same heads", "different heads"])
async def test_a_read_of_many_requests_takes_many_turns(*, same: bool) -> None:
    site = TurnCountingSite(LIMITS)
    bound = await site.server.listen("127.0.0.1:0")
    host, _, port = bound.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    targets = ["/x" if same else f"/x{number}" for number in range(2000)]
    writer.write(b"".join(request(target) for target in targets))
    for target in targets:
        status, _, got = await read_response(reader)
        assert (status, got) == (200, f"{target} 0".encode())
    most = max(site.turns.count(turn) for turn in set(site.turns))
    # 4 KiB of heads of this size.
    assert most <= 4096 // len(request("/x")) + 16 + 1
    writer.close()
    await site.server.close()


async def test_a_large_body_and_what_follows_it(site: HttpSite) -> None:
    reader, writer = await site.connect()
    chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"4000\r\n" + b"c" * 0x4000 + b"\r\n"
    writer.write(request("/echo", b"a" * 1_000_000))
    writer.write(chunked + chunks * 5 + b"0\r\n\r\n" + request("/echo", b"b"))
    bodies = [(await read_response(reader))[2][5:] for _ in range(3)]
    assert bodies == [b"a" * 1_000_000, b"c" * 0x4000 * 5, b"b"]


async def test_a_connection_that_closes_drops_what_is_deferred(site: HttpSite) -> None:
    reader, writer = await site.connect()
    closing = request("/echo", b"", "Connection: close")
    writer.write(request("/echo") * 5 + closing + request("/echo") * 2000)
    responses = await asyncio.wait_for(reader.read(), WAIT_S)
    assert responses.count(b"HTTP/1.1 200") == 6
