"""Shared memory exists and is registered for as long as it is used, however that ends."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.regions import Region, shared_regions

DIRECTORY = Path("/dev/shm")


class RecordingServer:
    """Notes what is registered, and what the memory holds then; refuses the region of a name."""

    def __init__(self, refused: str = "") -> None:
        self.registered: dict[str, bytes] = {}
        self._refused = refused

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0
    ) -> None:
        if name == self._refused:
            raise ConnectionError("refused")
        content = (DIRECTORY / key.removeprefix("/")).read_bytes()
        assert len(content) == byte_size
        assert offset == 0
        self.registered[name] = content

    def unregister_system_shared_memory(self, name: str = "") -> None:
        del self.registered[name]
        if name.endswith("gone"):
            raise ConnectionError("the server has ended")


@pytest.fixture
def prefix() -> Iterator[str]:
    made = f"nereid-test-{secrets.token_hex(4)}"
    yield made
    assert not [*DIRECTORY.glob(f"{made}*")]


def test_contents_are_there_and_all_is_cleaned_up(prefix: str) -> None:
    server = RecordingServer()
    regions = [
        Region(f"{prefix}-in", 100, ((0, b"abc"), (64, b"def"))),
        Region(f"{prefix}-gone", 5),
    ]
    with shared_regions(regions, server):
        assert server.registered == {
            f"{prefix}-in": b"abc".ljust(64, b"\0") + b"def".ljust(36, b"\0"),
            f"{prefix}-gone": bytes(5),
        }
        assert (DIRECTORY / f"{prefix}-in").stat().st_mode & 0o777 == 0o600
    assert server.registered == {}


def test_all_is_cleaned_up_after_an_error_of_the_run(prefix: str) -> None:
    server = RecordingServer()
    with pytest.raises(ZeroDivisionError), shared_regions([Region(f"{prefix}-in", 8)], server):
        raise ZeroDivisionError
    assert server.registered == {}


def test_all_is_cleaned_up_when_the_server_refuses_one(prefix: str) -> None:
    server = RecordingServer(refused=f"{prefix}-out")
    regions = [Region(f"{prefix}-in", 8), Region(f"{prefix}-out", 8)]
    with pytest.raises(ConnectionError, match="refused"), shared_regions(regions, server):
        pytest.fail("the block must not run")
    assert server.registered == {}


def test_memory_that_is_not_there_or_taken(prefix: str) -> None:
    server = RecordingServer()
    with (
        pytest.raises(InputError, match=rf"--shared-memory: {1 << 60} bytes in /dev/shm/{prefix}"),
        shared_regions([Region(f"{prefix}-in", 1 << 60)], server),
    ):
        pytest.fail("the block must not run")
    twice = [Region(f"{prefix}-in", 8)] * 2
    with pytest.raises(InputError, match="File exists"), shared_regions(twice, server):
        pytest.fail("the block must not run")
    assert server.registered == {}
