"""Many requests in one read are handled in turns of the loop; large bodies are not cut."""

from __future__ import annotations

import asyncio

import pytest

from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import WAIT_S, HttpSite, read_response, request

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


async def test_a_connection_that_closes_drops_what_is_deferred(site: HttpSite) -> None:
    reader, writer = await site.connect()
    closing = request("/echo", b"", "Connection: close")
    writer.write(request("/echo") * 5 + closing + request("/echo") * 2000)
    responses = await asyncio.wait_for(reader.read(), WAIT_S)
    assert responses.count(b"HTTP/1.1 200") == 6
