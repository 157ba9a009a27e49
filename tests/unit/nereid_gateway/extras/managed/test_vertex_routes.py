"""Where the redirect header of Vertex AI's calls leads."""

from __future__ import annotations

import pytest

from nereid_gateway.extras.managed.vertex_routes import Redirect, redirect


@pytest.mark.parametrize(
    ("value", "method"),
    [
        (b"v2", b"GET"),
        (b"v2/health/ready", b"GET"),
        (b"v2/models/m", b"GET"),
        (b"v2/models/m/versions/1/ready", b"GET"),
        (b"v2/models/m/config", b"GET"),
        (b"v2/models/stats", b"GET"),
        (b"v2/systemsharedmemory/status", b"GET"),
        (b"v2/models/m/infer", b"POST"),
        (b"v2/models/m/versions/1/infer", b"POST"),
        (b"v2/repository/index", b"POST"),
        (b"v2/repository/models/m/load", b"POST"),
        (b"v2/cudasharedmemory/unregister", b"POST"),
    ],
)
def test_kserve_routes_get_their_method(value: bytes, method: bytes) -> None:
    assert redirect(value) == Redirect(method, b"/" + value)


def test_the_metrics_page_is_what_statistics_are_to_clients() -> None:
    assert redirect(b"metrics") == Redirect(b"GET", b"/v2/models/stats", metrics=True)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"/v2",
        b"v2/",
        b"v2/trace/setting",
        b"v2/logging",
        b"v2/nereid/executors/executor-0/drain",
        b"predict",
        b"v2/nereid/timeline",
        b"console",
        b"console/facts",
        b"console/stream",
        b"metrics/",
    ],
)
def test_nowhere(value: bytes) -> None:
    assert redirect(value) is None
