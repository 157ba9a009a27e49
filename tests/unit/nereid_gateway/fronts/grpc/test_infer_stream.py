"""A burst of messages on one stream: handled over several turns, and all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from nereid.rpc import Status
from nereid.rpc.net.limits.budget import NO_ACCOUNT
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.response_timings import TimedRequests
from nereid_gateway.fronts.grpc.infer_stream import MAX_PENDING, InferStreams

TURN = 128


async def test_a_burst_is_read_to_its_end_though_nothing_is_responded_to() -> None:
    """As of sequences whose next requests are among those that are not read yet."""
    decoder: Any = SimpleNamespace(decode_now=lambda message: ClientRequest(0, message, []))
    data_plane: Any = SimpleNamespace(records_all=False, timed=TimedRequests.NEVER)
    streams = InferStreams(data_plane, decoder, {}, lambda _: Status.CANCELLED, None)
    call = Mock(account=NO_ACCOUNT, buffered_bytes=0, deadline=None, metadata=())
    call.get.return_value = None
    sent: list[bytes] = []

    def infer(request: ClientRequest, _: object) -> Any:
        sent.append(request.head)

    streams.open_stream(call, infer)
    expected = [b"%d" % number for number in range(MAX_PENDING)]
    for message in expected:
        call.on_message(message)
    assert sent == expected[:TURN]
    for _ in range(MAX_PENDING):
        await asyncio.sleep(0)
    assert sent == expected
    call.resume.assert_not_called()
    # The bound is reached: the next one stays unread.
    call.on_message(b"one too many")
    await asyncio.sleep(0)
    assert sent == expected
