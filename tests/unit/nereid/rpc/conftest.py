"""Peers that most tests begin with."""

from __future__ import annotations

import pytest

from tests.support.rpc.connection_harness import ClientHarness, ServerHarness


@pytest.fixture
def server() -> ServerHarness:
    return ServerHarness()


@pytest.fixture
def client() -> ClientHarness:
    return ClientHarness()
