"""Calls of managed ports: each gets one response, or becomes a call of a known KServe route."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from nereid_gateway.core.routes import SAGEMAKER, VERTEX_AI, resolve
from nereid_gateway.extras.managed.archives import Archives
from nereid_gateway.extras.managed.default_model import DefaultModel
from nereid_gateway.extras.managed.multi_model import MultiModel
from nereid_gateway.extras.managed.port import ManagedPort, Platform
from nereid_gateway.extras.managed.sagemaker import SageMaker
from nereid_gateway.extras.managed.server.calls import ManagedCall
from nereid_gateway.extras.managed.vertex_ai import VertexAi
from nereid_gateway.server.call import HttpCall

MAX_BYTES = 1024
_NOWHERE = Path("/nowhere/nereid")
_MODELS = MultiModel(cast("Any", None), Archives(_NOWHERE, _NOWHERE))
_DEFAULT = DefaultModel(cast("Any", None), "m", "--default-model")
_METHODS = (b"GET", b"POST", b"DELETE", b"HEAD", b"PUT")
# Of the head the first line is the target, the others are headers.
_BINARY = b"content-type: application/vnd.%b-triton.binary+json;json-header-size=%b"
_LOAD = b'{"model_name": "0a1b", "url": "/opt/ml/models/0a1b/model"}'
SEEDS = [
    b"\0\0/ping\n\n",
    b"\0\1/invocations\n" + _BINARY % (b"sagemaker", b"12") + b"\n\n{}",
    b"\0\1/invocations\n" + _BINARY % (b"vertex-ai", b"-1") + b"\nx: y\n\n{}",
    b"\0\1/models\nx-amzn-sagemaker-target-model: a.tar.gz\n\n" + _LOAD,
    b"\0\1/models/0a1b/invoke\naccept-encoding: gzip\n\n{}",
    b"\0\2/models/0a1b\n\n",
    b"\0\0/models/\n\n",
    b"\1\0/health?a\n\n",
    b"\1\1/predict\n" + _BINARY % (b"vertex-ai", b"2") + b"\n\n{}",
    b"\1\1/predict\nx-vertex-ai-triton-redirect: v2/models/m/versions/1/infer\n\n{}",
    b"\1\1/predict\nx-vertex-ai-triton-redirect: metrics\n\n",
    b"\1\1/predict\nx-vertex-ai-triton-redirect: v2/repository/models/m/load\n\n{}",
]
WORDS = [
    *(b"/invoke", b"/models/", b"?", b"#", b"%2f", b"//", b"..", b"v2/", b"/infer", b"\xc3\xa9"),
    *(b'"model_name"', b'"url"', b"\\u0000", b"null", b"json-header-size=", b" ", b"\0"),
]


def _serve_at_once(call: Any, handle: Any, *, survives_disconnect: bool) -> None:
    """In place of a queue."""
    assert survives_disconnect, call
    handle()


class _Port:
    """A port whose guards and fronts keep what they get."""

    def __init__(self, name: str, platform: Platform) -> None:
        self.calls: list[HttpCall] = []
        self.port = ManagedPort(name, platform, self.calls.append, self._guard, _serve_at_once)

    def _guard(self, _front: Any) -> Any:
        return self.calls.append, lambda _call, _size: None


_PORTS = (
    _Port(SAGEMAKER, SageMaker(_DEFAULT, _MODELS)),
    _Port(VERTEX_AI, VertexAi(_DEFAULT, print, predict_route="/predict", health_route="/health")),
)


def _call(data: bytes) -> ManagedCall:
    call = ManagedCall(lambda: None)
    head, _, call.body = data[2:].partition(b"\n\n")
    call.target, *lines = head.split(b"\n")
    call.method = _METHODS[data[1] % len(_METHODS)]
    for line in lines:
        name, _, value = line.partition(b": ")
        call.headers[name] = value
    return call


def run(data: bytes) -> None:
    if len(data) < 2:
        return
    port = _PORTS[data[0] % len(_PORTS)]
    outcomes = []
    # With and without a buffer for the body, which is decided by the head alone.
    for is_large in (False, True):
        port.calls.clear()
        call = _call(data)
        if is_large:
            port.port.allocate_body(call, max(1, len(call.body)))
            assert not call.done
        port.port(call)
        assert call.done is (not port.calls)
        if port.calls:
            assert port.calls == [call]
            assert port.port.name in resolve(call.target).endpoint.ports
            assert b"accept-encoding" not in call.headers
        status = call.unwritten[0][9:12] if call.done else b""
        assert not call.done or status in {b"400", b"405"}
        outcomes.append((call.method, call.target, call.headers, status, call.work is None))
    assert outcomes[0] == outcomes[1]
