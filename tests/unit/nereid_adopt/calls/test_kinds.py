import pytest

from nereid_adopt.calls.kinds import CallKind, HttpCall, grpc_call, http_call

_SERVICE = "/inference.GRPCInferenceService/"


@pytest.mark.parametrize(
    ("method", "target", "call"),
    [
        ("POST", b"/v2/models/m/infer", HttpCall(CallKind.INFER, "m")),
        ("POST", b"/v2/models/a%20b/versions/3/infer?x=1", HttpCall(CallKind.INFER, "a b")),
        ("POST", b"/v2/models/m/generate", HttpCall(CallKind.INFER, "m")),
        ("POST", b"/v2/models/m/generate_stream", HttpCall(CallKind.EVENTS, "m")),
        ("GET", b"/v2/models/m/infer", HttpCall(CallKind.OTHER)),
        ("POST", b"/v2/models/a/b/infer", HttpCall(CallKind.OTHER)),
        ("POST", b"/v2/repository/models/m/load", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/repository/models/m/unload", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/repository/index", HttpCall(CallKind.OTHER)),
        ("POST", b"/v2/systemsharedmemory/region/r/register", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/systemsharedmemory/unregister", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/cudasharedmemory/region/r/register", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/trace/setting", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/models/m/trace/setting", HttpCall(CallKind.CHANGE)),
        ("POST", b"/v2/logging", HttpCall(CallKind.CHANGE)),
        ("GET", b"/v2/logging", HttpCall(CallKind.OTHER)),
    ],
)
def test_http_requests_have_a_kind(method: str, target: bytes, call: HttpCall) -> None:
    assert http_call(method, target) == call


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{_SERVICE}ModelInfer", CallKind.INFER),
        (f"{_SERVICE}ModelStreamInfer", CallKind.STREAM),
        (f"{_SERVICE}LogSettings", CallKind.CHANGE),
        (f"{_SERVICE}ServerLive", CallKind.OTHER),
        ("/other/ModelInfer", CallKind.OTHER),
    ],
)
def test_grpc_calls_have_a_kind(path: str, kind: CallKind) -> None:
    assert grpc_call(path) is kind
