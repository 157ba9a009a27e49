"""Control calls, which cost more than they weigh: many of them at once, over many connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack

from nereid.pb import kserve_pb2
from tests.support.hostile.attack import ANY, SERVED, Attack, Client, Target
from tests.support.hostile.raw_clients import GrpcClient, HttpClient, data_frames, post
from tests.support.hostile.sending import SERVICE, ask
from tests.support.rpc.http2_frames import message

_LEAVE_S = 1.0
# Nobody else's: any attack may leave it loaded or not.
_MODEL = "partial"
_LOAD = f"/v2/repository/models/{_MODEL}/load"
_UNLOAD = f"/v2/repository/models/{_MODEL}/unload"


def flood(
    request: Callable[[int], bytes], port: str = "http", clients: int = 20, each: int = 200
) -> Client:
    """Pipelined requests on many connections, which hang up a little later. request: by number."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            opened = [HttpClient(getattr(target, port), target.source) for _ in range(clients)]
            for number, connection in enumerate(opened):
                stack.callback(connection.close)
                connection.pipelined = True
                requests = b"".join(map(request, range(number * each, (number + 1) * each)))
                connection.pump(requests, until=lambda: True, limit_s=0.1)
            opened[-1].pump(until=lambda: False, limit_s=_LEAVE_S)
            return opened[0].pump(until=lambda: True, limit_s=0.1).outcome

    return client


def _grpc_flood(method: str, body: bytes, calls: int = 4000) -> Client:
    """Calls on one connection, as many as it takes, that are left alone a little later."""

    def client(target: Target) -> str:
        connection = GrpcClient(target.grpc, target.source)
        try:
            frames = []
            for stream in range(1, 2 * calls, 2):
                frames.append(connection.headers(stream, SERVICE + method))
                frames.append(data_frames(stream, message(body), end=True))
            connection.pump(b"".join(frames), until=lambda: False, limit_s=_LEAVE_S)
            return connection.outcome
        finally:
            connection.close()

    return client


def _settings(path: str, **settings: object) -> Callable[[int], bytes]:
    request = post(path, json.dumps(settings).encode())
    return lambda _number: request


def _trace_message() -> bytes:
    request = kserve_pb2.TraceSettingRequest()
    request.settings["trace_rate"].value[:] = ["1000"]
    return request.SerializeToString()


def _log_message() -> bytes:
    request = kserve_pb2.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = 0
    return request.SerializeToString()


_TRACE = _settings("/v2/trace/setting", trace_rate="1000")
_LOG = _settings("/v2/logging", log_verbose_level=0)


def _once(request: Callable[[int], bytes]) -> Client:
    return lambda target: ask(target, request(0))


def _get(path: str) -> Callable[[int], bytes]:
    request = post(path, method="GET")
    return lambda _number: request


# Each with its harmless twin.
ATTACKS = (
    Attack("4,000 trace settings", flood(_TRACE), ANY),
    Attack("one trace setting", _once(_TRACE), SERVED),
    Attack("4,000 log settings", flood(_LOG), ANY, nightly=True),
    Attack(
        "4,000 changes of log settings",
        flood(lambda number: post("/v2/logging", b'{"log_verbose_level":%d}' % (number % 2))),
        ANY,
        nightly=True,
    ),
    Attack("one log setting", _once(_LOG), SERVED),
    Attack("gRPC 4,000 trace settings", _grpc_flood("TraceSetting", _trace_message()), ANY),
    Attack(
        "gRPC 4,000 log settings", _grpc_flood("LogSettings", _log_message()), ANY, nightly=True
    ),
    Attack(
        "4,000 configurations",
        flood(_get("/v2/models/identity_fp32/config")),
        ANY,
    ),
    Attack(
        "4,000 statistics of a model",
        flood(_get("/v2/models/identity_fp32/stats")),
        ANY,
        nightly=True,
    ),
    Attack("4,000 indexes", flood(lambda _: post("/v2/repository/index")), ANY),
    Attack(
        "4,000 indexes of a repository",
        flood(lambda _: post("/v2/repository/x/index")),
        ANY,
        nightly=True,
    ),
    Attack(
        "4,000 loads and unloads",
        flood(lambda number: post(_UNLOAD if number % 2 else _LOAD)),
        ANY,
        more_mib=100,
    ),
    Attack(
        "4,000 loads of unknown models",
        flood(lambda number: post(f"/v2/repository/models/none_{number}/load")),
        ANY,
    ),
    Attack(
        "4,000 drains of unknown executors",
        flood(lambda number: post(f"/v2/nereid/executors/none-{number}/drain")),
        ANY,
        nightly=True,
    ),
    Attack("4,000 questions for readiness", flood(_get("/v2/health/ready")), ANY),
    Attack(
        "4,000 questions for a model's readiness",
        flood(_get("/v2/models/identity_fp32/ready")),
        ANY,
        nightly=True,
    ),
    Attack("one load", _once(lambda _: post(_LOAD)), SERVED),
)
