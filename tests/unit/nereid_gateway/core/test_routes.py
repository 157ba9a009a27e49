"""Request targets to routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.core.routes import Route, RouteKind, resolve, template


@pytest.mark.parametrize(
    ("target", "route"),
    [
        (b"/v2", Route(RouteKind.SERVER_METADATA)),
        (b"/v2?x=1", Route(RouteKind.SERVER_METADATA)),
        (b"http://host:8000/v2", Route(RouteKind.SERVER_METADATA)),
        (b"HTTPS://host/v2?query", Route(RouteKind.SERVER_METADATA)),
        (b"http://host", Route(RouteKind.NOT_FOUND)),
        (b"/v2/health/live", Route(RouteKind.LIVE)),
        (b"/v2/health/ready", Route(RouteKind.READY)),
        (b"/v2/models/stats", Route(RouteKind.MODEL_STATISTICS)),
        (b"/v2/models/m", Route(RouteKind.MODEL_METADATA, "m")),
        (b"/v2/models/m/versions/01", Route(RouteKind.MODEL_METADATA, "m", "01")),
        (b"/v2/models/m/versions/1/infer", Route(RouteKind.INFER, "m", "1")),
        (b"/v2/models/m/infer", Route(RouteKind.INFER, "m")),
        (b"/v2/models/a%5Fb/infer", Route(RouteKind.INFER, "a_b")),
        (b"/v2/models/my%20model/infer", Route(RouteKind.INFER, "my model")),
        (b"/v2/models/mod%C3%A8le/versions/1", Route(RouteKind.MODEL_METADATA, "mod\u00e8le", "1")),
        (b"/v2/models/50%25%3f/infer", Route(RouteKind.INFER, "50%?")),
        (
            b"/v2/systemsharedmemory/region/a%20b/status",
            Route(RouteKind.SHARED_MEMORY_STATUS, memory_kind="system", region="a b"),
        ),
        ("/v2/models/é/infer".encode(), Route(RouteKind.INFER, "é")),
        (b"/v2/models/m/ready", Route(RouteKind.MODEL_READY, "m")),
        (b"/v2/models/m/config", Route(RouteKind.MODEL_CONFIG, "m")),
        (b"/v2/models/m/versions/2/stats", Route(RouteKind.MODEL_STATISTICS, "m", "2")),
        (b"/v2/models/m/generate_stream", Route(RouteKind.GENERATE_STREAM, "m")),
        (b"/v2/models/m/trace/setting", Route(RouteKind.TRACE_SETTING, "m")),
        (b"/v2/trace/setting", Route(RouteKind.TRACE_SETTING)),
        (b"/v2/logging", Route(RouteKind.LOGGING)),
        (
            b"/v2/nereid/executors/executor-0/drain",
            Route(RouteKind.EXECUTOR_DRAIN, executor="executor-0"),
        ),
        (b"/v2/nereid/executors/a/b/drain", Route(RouteKind.NOT_FOUND)),
        (b"/v2/nereid/executors//drain", Route(RouteKind.NOT_FOUND)),
        (b"/console", Route(RouteKind.CONSOLE_PAGE)),
        (b"/console/static/page.js", Route(RouteKind.CONSOLE_PAGE, file="page.js")),
        (b"/console/static/../secret", Route(RouteKind.NOT_FOUND)),
        (b"/console/facts?query=a", Route(RouteKind.CONSOLE_FACTS)),
        (b"/console/stream", Route(RouteKind.CONSOLE_STREAM)),
        (b"/v2/repository/index", Route(RouteKind.REPOSITORY_INDEX)),
        (b"/v2/repository/x/index", Route(RouteKind.REPOSITORY_INDEX, repository="x")),
        (b"/v2/repository/models/m/load", Route(RouteKind.REPOSITORY_LOAD, "m")),
        (
            b"/v2/repository/r/models/m/unload",
            Route(RouteKind.REPOSITORY_UNLOAD, "m", repository="r"),
        ),
        (
            b"/v2/systemsharedmemory/status",
            Route(RouteKind.SHARED_MEMORY_STATUS, memory_kind="system"),
        ),
        (
            b"/v2/cudasharedmemory/region/r/status",
            Route(RouteKind.SHARED_MEMORY_STATUS, memory_kind="cuda", region="r"),
        ),
        (
            b"/v2/systemsharedmemory/region/r/register",
            Route(RouteKind.SHARED_MEMORY_REGISTER, memory_kind="system", region="r"),
        ),
        (
            b"/v2/systemsharedmemory/unregister",
            Route(RouteKind.SHARED_MEMORY_UNREGISTER, memory_kind="system"),
        ),
    ],
)
def test_routes(target: bytes, route: Route) -> None:
    assert resolve(target) == route


@pytest.mark.parametrize(
    "target",
    [
        b"",
        b"/v2/",
        b"/V2",
        b"/v2/models/m/nope",
        b"/v2/models//ready",
        b"/v2/models/m/versions/",
        b"/v2/models/m/versions/x",
        b"/v2/models/m/versions/+3/infer",
        b"/v2/models/m/versions/1/trace/setting",
        b"/v2/systemsharedmemory/region//status",
        b"/v2/gpusharedmemory/status",
        b"/v2/models/m/infer\n",
        # No names: a path, bytes that are no text, and no bytes.
        b"/v2/models/a%2Fb/infer",
        b"/v2/models/%FF/infer",
        b"/v2/models/\xff/infer",
        b"/v2/models/%zz/infer",
        b"/v2/models/50%/infer",
        # Only names are quoted.
        b"/v2/models/m%2Finfer/generate/infer",
        b"/v2%2Fhealth/live",
        b"/v2/models/m/versions/%31",
    ],
)
def test_targets_without_a_route(target: bytes) -> None:
    assert resolve(target).kind is RouteKind.NOT_FOUND


@given(st.binary(max_size=60))
def test_any_target_has_a_route(target: bytes) -> None:
    assert isinstance(resolve(b"/v2/models/" + target), Route)
    assert resolve(b"/v1" + target) == Route(RouteKind.NOT_FOUND)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v2/models/m/infer?x", "/v2/models/{model}/infer"),
        (
            b"http://host/v2/models/m/versions/2/infer",
            "/v2/models/{model}/versions/{version}/infer",
        ),
        (b"/v2", "/v2"),
        (b"/nowhere", ""),
    ],
)
def test_templates_name_what_the_target_has(target: bytes, expected: str) -> None:
    assert template(target) == expected
