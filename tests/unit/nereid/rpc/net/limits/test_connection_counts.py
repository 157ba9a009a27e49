"""Connections at one port: in all, by client, and with handshakes."""

from __future__ import annotations

import pytest

from nereid.rpc.net.limits.connection_counts import ConnectionCounts


def open_many(counts: ConnectionCounts, client: str, number: int) -> list[int]:
    return [counts.add(client, after_handshake=False) for _ in range(number)]


def test_all_and_each_client_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    counts = ConnectionCounts("HTTP", 5, 2)
    assert open_many(counts, "a", 3)[1:] == [0, 1]
    counts.remove("a")
    assert open_many(counts, "b", 2)[-1] == 0
    assert open_many(counts, "c", 2) == [0, 1]
    counts.remove("c")
    counts.remove("b")
    assert open_many(counts, "c", 1) == [0]
    assert [record.getMessage() for record in caplog.records] == [
        "more than 2 HTTP connections of a: refusing the newest (--max-connections-per-client)"
    ]


def test_unix_sockets_count_in_all_alone(caplog: pytest.LogCaptureFixture) -> None:
    counts = ConnectionCounts("gRPC", 5, 2)
    assert open_many(counts, "", 7)[-3:] == [0, 1, 2]
    assert "more than 5 gRPC connections: refusing" in caplog.text
    unlimited = ConnectionCounts("gRPC", None, None)
    assert max(open_many(unlimited, "a", 1000)) <= 0


def test_handshakes_count_until_they_are_connections_or_fail() -> None:
    counts = ConnectionCounts("HTTP", 1000, 1)
    # Some more, so that their clients can be told.
    assert all(counts.begin_handshake("a") for _ in range(65))
    assert not counts.begin_handshake("a")
    assert counts.begin_handshake("b")
    counts.end_handshake("a")
    assert counts.begin_handshake("a")
    for _ in range(64):
        counts.end_handshake("a")
    assert counts.add("a", after_handshake=True) == 0
    assert counts.add("a", after_handshake=False) == 1


def test_nothing_is_kept_of_clients_that_have_left() -> None:
    counts = ConnectionCounts("HTTP", 10, 2)
    for number in range(100):
        client = f"10.0.0.{number}"
        counts.begin_handshake(client)
        counts.add(client, after_handshake=True)
        counts.remove(client)
    assert not counts._by_client
    assert open_many(counts, "a", 2) == [-1, 0]
