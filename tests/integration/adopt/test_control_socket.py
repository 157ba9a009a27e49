"""The proxy's control socket, and what is no question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nereid_adopt.control import ControlSocket


@pytest.fixture
async def turns(tmp_path: Path) -> AsyncIterator[list[int]]:
    """The weights that were set by the socket of this test."""
    weights: list[int] = []

    async def report() -> dict[str, Any]:
        return {"weights": weights}

    control = ControlSocket(weights.append, report)
    await control.open(str(tmp_path / "adopt.sock"))
    yield weights
    control.close()


async def ask(path: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(line)
    writer.write_eof()
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"turn": true}\n',
        b'{"turn": 101}\n',
        b'{"turn": -1}\n',
        b'{"turn": NaN}\n',
        b'{"turn": 10',
        b"[" * 100_000 + b"\n",
        b" " * (3 << 20) + b"\n",
        b"\xff\n",
        b"\n",
    ],
    ids=["bool", "101", "-1", "nan", "cut", "deep", "long", "no text", "empty"],
)
async def test_what_is_no_question_turns_nothing(
    tmp_path: Path, turns: list[int], line: bytes
) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    reply = await ask(tmp_path / "adopt.sock", line)
    assert not reply or "refused" in json.loads(reply)
    assert json.loads(await ask(tmp_path / "adopt.sock", b'{"turn": 5}\n')) == {"weight": 5}
    assert turns == [5]
    assert failures == []
