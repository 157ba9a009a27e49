"""HTTP: health, metadata, configuration, statistics, lookup and routing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.exchange import Http
from tests.conformance.row import Row, grouped, row, without_texts

_MODELS = (
    ("models/add_sub", "model"),
    ("models/versions", "several-versions"),
    ("models/versions/versions/1", "version-1"),
    ("models/versions/versions/3", "version-3"),
    ("models/versions/versions/2", "version-not-chosen"),
    ("models/versions/versions/03", "version-leading-zero"),
    ("models/versions/versions/0", "version-zero"),
    ("models/versions/versions/-1", "version-negative"),
    ("models/versions/versions/+3", "version-plus"),
    ("models/versions/versions/x", "version-letter"),
    ("models/versions/versions/1.0", "version-fraction"),
    ("models/versions/versions/%33", "version-escaped"),
    ("models/versions/versions/99999999999999999999", "version-huge"),
    ("models/versions/versions/9223372036854775807", "version-largest"),
    ("models/versions/versions/9223372036854775808", "version-too-large"),
    ("models/versions/versions/", "version-empty"),
    ("models/versions/versions", "versions-alone"),
    ("models/nope", "unknown"),
    ("models/nope/versions/1", "unknown-version"),
    ("models/broken", "broken"),
    ("models/broken/versions/1", "broken-version"),
    ("models/labelled", "labelled"),
    ("models/slow", "queue-policy"),
    ("models/identity_bytes", "bytes"),
    ("models/several", "several-inputs"),
    ("models/%61dd_sub", "escaped"),
    ("models/add_sub%20", "escaped-space"),
    ("models/add sub", "space"),
    ("models/", "empty-name"),
    ("models/ADD_SUB", "capitals"),
    ("models//add_sub", "two-slashes"),
)
_KINDS = (("", "metadata"), ("/ready", "ready"), ("/config", "config"))
_STATISTICS = (
    "models/nope",
    "models/nope/versions/1",
    "models/versions/versions/2",
    "models/versions/versions/x",
    "models/versions/versions/99999999999999999999",
    "models/broken",
)
_TARGETS = (
    *("", "/", "/v2", "/v2/", "/v2//", "/v1", "/v2?a=b", "/v2/x", "/v22", "/V2", "//v2"),
    *("/v2/health", "/v2/health/", "/v2/health/live", "/v2/health/live/", "/v2/health/live?x=1"),
    *("/v2/health/ready", "/v2/health/ready/", "/v2/health/x", "/v2/models", "/v2/models/stats/x"),
    *("/v2/models/add_sub/", "/v2/models/add_sub/x", "/v2/models/add_sub/config/"),
    *("/v2/models/add_sub/ready/", "/v2/models/add_sub/versions/1/", "/v2/models/add_sub?x"),
    *("/v2/models/add_sub/versions/1/x", "/v2/models/add_sub/config?x", "/v2/repository"),
    *("/v2/models/add_sub/infer/", "/v2/models/add_sub/infer/x", "/v2/repository/index/"),
    *("/v2/models/stats?x=1", "/metrics", "/favicon.ico"),
)
_METHODS = (
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/add_sub", "/v2/models/stats"),
    *("/v2/models/add_sub/ready", "/v2/models/add_sub/config", "/v2/models/add_sub/stats"),
    *("/v2/models/add_sub/infer", "/v2/models/add_sub/generate", "/v2/repository/index"),
    *("/v2/models/add_sub/generate_stream", "/v2/repository/models/add_sub/load"),
    *("/v2/repository/models/add_sub/unload", "/v2/logging", "/v2/trace/setting"),
    *("/v2/models/add_sub/trace/setting", "/v2/systemsharedmemory/status"),
    *("/v2/systemsharedmemory/region/r/register", "/v2/cudasharedmemory/unregister"),
    *("/v2/models/nope", "/v2/models/nope/ready", "/v2/models/nope/infer"),
)


def rows() -> Iterator[Row]:
    yield from grouped("http/lookup", _lookup())
    yield from grouped("http/routing", _routing())
    yield from grouped("http/statistics", _statistics())


def _lookup() -> Iterator[Row]:
    for path, name in _MODELS:
        for suffix, kind in _KINDS:
            # Why a model did not load is the backend's to say.
            view = without_texts if "broken" in name else None
            yield row(f"{kind}/{name}", Http("GET", f"/v2/{path}{suffix}"), view=view)
        if name not in {"model", "labelled", "queue-policy", "bytes", "several-inputs"}:
            yield row(
                f"infer/{name}",
                Http("POST", f"/v2/{path}/infer", b'{"inputs":[]}'),
                view=without_texts if "broken" in name else None,
            )


def _routing() -> Iterator[Row]:
    for target in _TARGETS:
        view = _names_alone if "stats" in target else None
        yield row(f"target/{target or 'empty'}", Http("GET", target or "*"), view=view)
    for target in _METHODS:
        reading = "GET" if target.endswith(("infer", "index", "register", "load")) else "POST"
        for method in (reading, "PUT", "DELETE"):
            yield row(f"{method}{target}", Http(method, target, b"{}" if method != "GET" else b""))
    for method in ("HEAD", "OPTIONS", "PATCH"):
        for target in ("/v2", "/v2/health/live", "/v2/models/add_sub/infer", "/nothing"):
            yield row(f"{method}{target}", Http(method, target))


def _statistics() -> Iterator[Row]:
    for path in _STATISTICS:
        yield row(path, Http("GET", f"/v2/{path}/stats"))
    yield row("all", Http("GET", "/v2/models/stats"), view=_names_alone)
    good = json.dumps(
        {
            "id": "7",
            "inputs": [
                {"name": "INPUT0", "datatype": "INT32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}
            ],
        }
    ).encode()
    infer = "/v2/models/counted_http/infer"
    yield row(
        "counts",
        Http("GET", "/v2/models/counted_http/stats"),
        Http("POST", infer, good),
        Http("POST", infer, good.replace(b"[3, 2]", b"[1, 6]")),
        Http("POST", infer, good.replace(b"[3, 2]", b"[9, 2]")),
        Http("POST", infer, b"{"),
        Http("POST", infer, good),
        Http("GET", "/v2/models/counted_http/stats"),
        Http("GET", "/v2/models/counted_http/versions/1/stats"),
    )


def _names_alone(response: Any) -> Any:
    """Of all models' statistics: what other rows do changes the counts."""
    if isinstance(response, dict) and isinstance(response.get("json"), dict):
        stats = response["json"].get("model_stats")
        if isinstance(stats, list):
            return sorted((each["name"], each["version"], *sorted(each)) for each in stats)
    return response
