"""Request targets to routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.core import routes
from nereid_gateway.core.routes import ENDPOINTS, NOT_FOUND, Route, resolve, template

BY_HANDLER = {endpoint.handler: endpoint for endpoint in ENDPOINTS}


def route(handler: str, model: str = "", version: str = "", **names: str) -> Route:
    return Route(BY_HANDLER[handler], model, version, **names)


def test_an_endpoint_is_one_row() -> None:
    assert len(BY_HANDLER) == len(ENDPOINTS)
    assert not any(endpoint.at_once and endpoint.is_probe for endpoint in ENDPOINTS)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v2", route("MetadataEndpoints.server_metadata")),
        (b"/v2?x=1", route("MetadataEndpoints.server_metadata")),
        (b"http://host:8000/v2", route("MetadataEndpoints.server_metadata")),
        (b"HTTPS://host/v2?query", route("MetadataEndpoints.server_metadata")),
        (b"http://host", Route(NOT_FOUND)),
        (b"/v2/health/live", route("HealthEndpoints.live")),
        (b"/v2/health/ready", route("HealthEndpoints.ready")),
        (b"/v2/models/stats", route("MetadataEndpoints.model_statistics")),
        (b"/v2/models/m", route("MetadataEndpoints.model_metadata", "m")),
        (b"/v2/models/m/versions/01", route("MetadataEndpoints.model_metadata", "m", "01")),
        (b"/v2/models/m/versions/1/infer", route("InferEndpoint.handle", "m", "1")),
        (b"/v2/models/m/infer", route("InferEndpoint.handle", "m")),
        (b"/v2/models/a%5Fb/infer", route("InferEndpoint.handle", "a_b")),
        (b"/v2/models/my%20model/infer", route("InferEndpoint.handle", "my model")),
        (
            b"/v2/models/mod%C3%A8le/versions/1",
            route("MetadataEndpoints.model_metadata", "mod\u00e8le", "1"),
        ),
        (b"/v2/models/50%25%3f/infer", route("InferEndpoint.handle", "50%?")),
        (
            b"/v2/systemsharedmemory/region/a%20b/status",
            route("SharedMemoryEndpoints.status", memory_kind="system", region="a b"),
        ),
        ("/v2/models/é/infer".encode(), route("InferEndpoint.handle", "é")),
        (b"/v2/models/m/ready", route("HealthEndpoints.model_ready", "m")),
        (b"/v2/models/m/config", route("MetadataEndpoints.model_config", "m")),
        (b"/v2/models/m/versions/2/stats", route("MetadataEndpoints.model_statistics", "m", "2")),
        (b"/v2/models/m/generate_stream", route("GenerateEndpoint.handle_stream", "m")),
        (b"/v2/models/m/trace/setting", route("TraceAndLogEndpoints.trace_setting", "m")),
        (b"/v2/trace/setting", route("TraceAndLogEndpoints.trace_setting")),
        (b"/v2/logging", route("TraceAndLogEndpoints.logging")),
        (
            b"/v2/nereid/executors/executor-0/drain",
            route("ExecutorEndpoints.drain", executor="executor-0"),
        ),
        (b"/v2/nereid/executors/a/b/drain", Route(NOT_FOUND)),
        (b"/v2/nereid/executors//drain", Route(NOT_FOUND)),
        (b"/console", route("ConsoleEndpoints.page")),
        (b"/console/static/page.js", route("ConsoleEndpoints.page", file="page.js")),
        (b"/console/static/../secret", Route(NOT_FOUND)),
        (b"/console/facts?query=a", route("ConsoleEndpoints.facts")),
        (b"/console/stream", route("ConsoleEndpoints.stream")),
        (b"/v2/repository/index", route("RepositoryEndpoints.index")),
        (b"/v2/repository/x/index", route("RepositoryEndpoints.index", repository="x")),
        (b"/v2/repository/models/m/load", route("RepositoryEndpoints.load", "m")),
        (
            b"/v2/repository/r/models/m/unload",
            route("RepositoryEndpoints.unload", "m", repository="r"),
        ),
        (
            b"/v2/systemsharedmemory/status",
            route("SharedMemoryEndpoints.status", memory_kind="system"),
        ),
        (
            b"/v2/cudasharedmemory/region/r/status",
            route("SharedMemoryEndpoints.status", memory_kind="cuda", region="r"),
        ),
        (
            b"/v2/systemsharedmemory/region/r/register",
            route("SharedMemoryEndpoints.register", memory_kind="system", region="r"),
        ),
        (
            b"/v2/systemsharedmemory/unregister",
            route("SharedMemoryEndpoints.unregister", memory_kind="system"),
        ),
    ],
)
def test_routes(target: bytes, expected: Route) -> None:
    assert resolve(target) == expected


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
    assert resolve(target) == Route(NOT_FOUND)


@given(st.binary(max_size=60))
def test_any_target_has_a_route(target: bytes) -> None:
    assert isinstance(resolve(b"/v2/models/" + target), Route)
    assert resolve(b"/v1" + target) == Route(NOT_FOUND)


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


def test_paths_without_names_are_found_as_the_patterns_find_them() -> None:
    texts = [text for each in ENDPOINTS for text in each.templates if "{" not in text]
    assert len(texts) == len(set(texts))
    for text in texts:
        matches = (found for pattern, found, _ in routes._PATTERNS if pattern.fullmatch(text))
        assert resolve(text.encode()).endpoint is next(matches)
