"""Tasks of calls: what they raise is their own response."""

from __future__ import annotations

import asyncio

import pytest

from nereid.core.errors import INTERNAL_MESSAGE, NotFound
from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.call_tasks import CallTasks


@pytest.mark.parametrize(
    ("error", "status", "message", "logged"),
    [
        (NotFound("no such thing"), b"404", b"no such thing", False),
        (KeyError("a secret"), b"500", INTERNAL_MESSAGE.encode(), True),
    ],
)
async def test_an_exception_is_an_error_of_its_call(
    caplog: pytest.LogCaptureFixture, error: Exception, status: bytes, message: bytes, logged: bool
) -> None:
    responded = asyncio.Event()
    call = HttpCall(responded.set)

    async def work() -> None:
        raise error

    CallTasks().spawn(call, work())
    await asyncio.wait_for(responded.wait(), 5)
    head, body = call.unwritten
    assert head.startswith(b"HTTP/1.1 " + status)
    assert message in body
    assert b"secret" not in body
    assert ("a secret" in caplog.text) is logged
