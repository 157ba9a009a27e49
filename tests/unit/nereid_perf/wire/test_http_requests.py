"""Requests as bytes of HTTP/1.1."""

import zlib
from functools import partial

from nereid_perf.endpoint import Endpoint
from nereid_perf.inputs.plan import InputPlan
from nereid_perf.inputs.source import make_source
from nereid_perf.plan import Plan, Workload
from nereid_perf.request import Request
from nereid_perf.wire.http_requests import HttpRequests


def _split(plan: Plan, request: Request) -> tuple[list[str], bytes]:
    head, _, body = HttpRequests(plan).wire_bytes(request).partition(b"\r\n\r\n")
    return head.decode().split("\r\n"), body


def _plan(*workloads: Workload, **options: str) -> Plan:
    endpoint = Endpoint("http", "host:80", headers=(("X-Any", "thing"),))
    return Plan(
        endpoint=endpoint,
        workloads=workloads,
        make_source=partial(make_source, InputPlan("http")),
        **options,  # type: ignore[arg-type]  # a test's own options
    )


def test_a_request_with_tensors_behind_its_json() -> None:
    lines, body = _split(_plan(Workload("a/b", "3")), Request(b"{}xyz", 2))
    assert lines == [
        "POST /v2/models/a%2Fb/versions/3/infer HTTP/1.1",
        "Host: host:80",
        "X-Any: thing",
        "Content-Type: application/octet-stream",
        "Inference-Header-Content-Length: 2",
        "Content-Length: 5",
    ]
    assert body == b"{}xyz"


def test_a_request_of_json_alone_goes_to_its_workload() -> None:
    lines, _ = _split(_plan(Workload("a"), Workload("b")), Request(b"{}", workload=1))
    assert lines[0] == "POST /v2/models/b/infer HTTP/1.1"
    assert "Content-Type: application/json" in lines
    assert not any("Inference-Header" in line for line in lines)


def test_calls_of_openais_api_have_one_path() -> None:
    lines, _ = _split(_plan(Workload("a"), path="/v1/embeddings"), Request(b"{}"))
    assert lines[0] == "POST /v1/embeddings HTTP/1.1"


def test_a_compressed_body_has_its_own_length() -> None:
    lines, body = _split(_plan(Workload("a"), compression="gzip"), Request(b"{}" * 500))
    assert zlib.decompress(body, 31) == b"{}" * 500
    assert f"Content-Length: {len(body)}" in lines
    assert {"Content-Encoding: gzip", "Accept-Encoding: gzip"} <= set(lines)
