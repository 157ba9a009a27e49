"""Peers that most tests begin with."""

from __future__ import annotations

import pytest

from tests.support.rpc.http2_peers import Ends, Side


@pytest.fixture
def side() -> Side:
    return Side()


@pytest.fixture
def ends() -> Ends:
    return Ends()
