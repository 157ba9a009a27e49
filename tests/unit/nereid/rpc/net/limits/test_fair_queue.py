"""Peers are served in turn, whatever any of them queues, within bounds."""

from __future__ import annotations

import contextlib

import pytest

from nereid.rpc.net.limits.fair_queue import FairQueue, QueueFullError


def taken(queue: FairQueue[str]) -> list[str | None]:
    return [queue.take() for _ in range(len(queue))]


def test_addresses_are_served_in_turn_and_then_their_connections() -> None:
    queue = FairQueue[str]("requests", 100, 1 << 20)
    for number in range(3):
        queue.add("10.0.0.1:1", 10, f"a1-{number}")
    queue.add("10.0.0.1:2", 10, "a2-0")
    queue.add("10.0.0.2:7", 10, "b7-0")
    queue.add("[::1]:9", 10, "c9-0")
    assert taken(queue) == ["a1-0", "b7-0", "c9-0", "a2-0", "a1-1", "a1-2"]
    assert queue.take() is None
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_addresses_of_one_ipv6_network_are_one() -> None:
    queue = FairQueue[str]("requests", 100, 1 << 20)
    for host in range(1, 4):
        queue.add(f"[2001:db8::{host}]:1", 10, f"a{host}")
    queue.add("[2001:db8:1::1]:1", 10, "b1")
    assert taken(queue) == ["a1", "b1", "a2", "a3"]


def test_a_peer_that_adds_more_while_it_is_served_waits_behind_others() -> None:
    queue = FairQueue[str]("requests", 100, 1 << 20)
    queue.add("a:1", 1, "a0")
    queue.add("b:1", 1, "b0")
    assert queue.take() == "a0"
    queue.add("a:1", 1, "a1")
    queue.add("a:1", 1, "a2")
    assert taken(queue) == ["b0", "a1", "a2"]


def test_a_discarded_item_is_not_served_and_not_counted() -> None:
    queue = FairQueue[str]("requests", 100, 1 << 20)
    first = queue.add("a:1", 5, "first")
    queue.add("a:1", 7, "second")
    queue.discard(first)
    queue.discard(first)
    assert (len(queue), queue.size_bytes) == (1, 7)
    assert taken(queue) == ["second"]
    queue.discard(first)


def test_an_address_gets_half_of_the_bytes_and_others_the_rest() -> None:
    queue = FairQueue[str]("requests", 100, 1000)
    queue.add("a:1", 400, "a")
    with pytest.raises(QueueFullError, match=r"1 requests of 400 bytes are waiting"):
        queue.add("a:2", 200, "too much")
    queue.add("b:1", 475, "b")
    with pytest.raises(QueueFullError):
        queue.add("c:1", 32, "too much in all")
    queue.add("c:1", 31, "a share of what is left")
    assert len(taken(queue)) == 3


def test_a_single_item_may_be_larger_than_the_queue() -> None:
    queue = FairQueue[str]("requests", 100, 1000)
    queue.add("a:1", 5000, "large")
    with pytest.raises(QueueFullError):
        queue.add("b:1", 1, "small")
    assert queue.take() == "large"


def test_an_address_gets_half_of_the_places() -> None:
    queue = FairQueue[str]("requests", 8, 1000)
    for number in range(4):
        queue.add(f"a:{number}", 0, "a")
    with pytest.raises(QueueFullError):
        queue.add("a:5", 0, "a")
    for client in ("b", "c", "d"):
        queue.add(f"{client}:1", 0, client)
    with pytest.raises(QueueFullError):
        queue.add("e:1", 0, "e")


def test_no_number_of_clients_keeps_out_another_one() -> None:
    queue = FairQueue[str]("requests", 100, 1000)
    added = []
    for client in ("a", "b", "c", "d"):
        added.append(0)
        with contextlib.suppress(QueueFullError):
            while True:
                queue.add(f"{client}:1", 10, "x")
                added[-1] += 1
    assert added == [50, 37, 3, 2]


def test_a_named_client_is_one_at_all_its_addresses() -> None:
    queue = FairQueue[str]("requests", 4)
    queue.add("a:1", 1, "x0", "x")
    queue.add("b:1", 1, "x1", "x")
    with pytest.raises(QueueFullError):
        queue.add("c:1", 1, "x2", "x")
    queue.add("a:1", 1, "a0")
    assert taken(queue) == ["x0", "a0", "x1"]


def test_clients_may_be_passed_over() -> None:
    queue = FairQueue[str]("requests", 100)
    for peer in ("a:1", "a:2", "b:1"):
        queue.add(peer, 1, peer)
    ticket = queue.peek(lambda client: client != "a")
    assert ticket is not None
    assert queue.take_ticket(ticket) == "b:1"
    assert queue.peek(lambda client: client != "a") is None
    assert taken(queue) == ["a:1", "a:2"]
