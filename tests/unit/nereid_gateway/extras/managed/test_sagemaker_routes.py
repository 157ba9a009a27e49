"""SageMaker's routes, and the statuses of its errors."""

from __future__ import annotations

import pytest

from nereid_gateway.extras.managed.sagemaker_routes import (
    Action,
    SageMakerRoute,
    map_status,
    resolve,
)
from nereid_gateway.server.call import JSON, TEXT


@pytest.mark.parametrize(
    ("target", "action", "model"),
    [
        (b"/ping", Action.PING, ""),
        (b"/invocations", Action.INVOCATIONS, ""),
        (b"/invocations?a=b", Action.INVOCATIONS, ""),
        (b"/models", Action.MODELS, ""),
        (b"/models/", Action.MODELS, ""),
        (b"/models/0a1b", Action.MODEL, "0a1b"),
        (b"/models/0a1b/invoke", Action.INVOKE, "0a1b"),
        ("/models/\u00e9".encode(), Action.MODEL, "\u00e9"),
        (b"/models/a%20b", Action.MODEL, "a b"),
        (b"/models/a%2Fb", Action.NONE, ""),
        (b"/models/\xff/invoke", Action.NONE, ""),
        (b"/models/0a1b/invoke/", Action.NONE, ""),
        (b"/models/0a1b/other", Action.NONE, ""),
        (b"/models//invoke", Action.NONE, ""),
        (b"/ping/", Action.NONE, ""),
        (b"/v2/models/m/infer", Action.NONE, ""),
        (b"", Action.NONE, ""),
    ],
)
def test_routes(target: bytes, action: Action, model: str) -> None:
    assert resolve(target) == SageMakerRoute(action, model)


@pytest.mark.parametrize(
    ("status", "text", "mapped"),
    [
        (500, "CUDA out of memory. Tried to allocate 2 GiB", 507),
        (400, "MemoryError: cannot allocate", 507),
        (400, "write failed: No space left on device", 507),
        (500, "OOM when allocating tensor", 507),
        (500, "the model failed", 400),
        # Of a word that has the letters alone.
        (500, "no ROOM for it", 400),
        (404, "unknown model", 404),
        (503, "the queue is full", 503),
    ],
)
def test_statuses(status: int, text: str, mapped: int) -> None:
    assert map_status(status, TEXT, text.encode()) == mapped


def test_a_request_that_cannot_be_parsed_is_no_failure_of_its_model() -> None:
    assert map_status(500, JSON, b"failed to parse the request JSON buffer") == 500
    # A failed load is neither.
    assert map_status(500, JSON, b"failed to allocate memory") == 507
