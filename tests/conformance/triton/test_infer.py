"""The same generated infer requests to both servers: statuses, headers and bodies are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note

from tests.conformance.exchange import Http, Rpc, Step, dumped
from tests.conformance.row import Row
from tests.conformance.triton import generated
from tests.conformance.triton.accepted_differences import excused
from tests.conformance.triton.conftest import Pair

pytestmark = pytest.mark.parametrize("pair", ["default"], indirect=True)


def compare(pair: Pair, step: Step) -> None:
    row = Row("a generated request", (step,))
    ours = row.ask(pair.nereid)
    assert ours != "no answer"
    real = pair.real(lambda: pair.triton.ask(row), lambda reported: excused(reported, ours))
    note(f"Triton {dumped(real)}")
    note(f"Nereid {dumped(ours)}")
    if not excused(real, ours):
        assert dumped(ours) == dumped(real)


@given(request=generated.http_requests())
def test_http(pair: Pair, request: Http) -> None:
    compare(pair, request)


@given(request=generated.wrong_documents())
def test_http_with_something_else_in_it(pair: Pair, request: Http) -> None:
    compare(pair, request)


@given(request=generated.damaged_http())
def test_http_damaged(pair: Pair, request: Http) -> None:
    compare(pair, request)


@given(message=generated.grpc_messages())
def test_grpc(pair: Pair, message: Any) -> None:
    compare(pair, Rpc("ModelInfer", message))


@given(request=generated.wrong_messages())
def test_grpc_with_something_else_in_it(pair: Pair, request: Rpc) -> None:
    compare(pair, request)


@given(request=generated.damaged_messages())
def test_grpc_damaged(pair: Pair, request: Rpc) -> None:
    compare(pair, request)
