"""Traffic to versions, rollouts, conditions, lengths and targets: values that nobody means.

The models are those of save_models().
"""

from __future__ import annotations

import json
import struct
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.hostile.attack import ANY, SERVED, Attack, Client, Target
from tests.support.hostile.attacks.control_calls import flood
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import ask, http_body
from tests.support.models.e2e_models import DATATYPES, save_identity, save_scaler, save_sign
from tests.support.scheduler.ensemble_configs import Step, ensemble_config, save_ensemble

_MIB = 1 << 20
_VERSIONS = "max_batch_size: 64\ndynamic_batching { }\nversion_policy { all { } }\n"
_BY = {"header": "header:x-user", "parameter": "parameter:user", "tensor": "tensor:INPUT0"}
_TARGET = 'parameters { key: "target_p99_us" value { string_value: "100000" } }\n'
_TOKENS = """max_batch_size: 16
dynamic_batching { }
parameters { key: "padding" value { string_value: "INPUT0[0]=0 -> OUTPUT0[0]: 8 64" } }
parameters { key: "max_batch_tokens" value { string_value: "64" } }
"""
_CALLED = "/v2/repository/models/called/"
_ABORT = post(_CALLED + "rollout", b'{"action": "abort"}')


def save_models(root: Path) -> None:
    """Save models with versions that share requests, with conditions, and with a target."""
    for kind, by in _BY.items():
        _save_versions(root, f"by_{kind}", {"weights": {"1": 50, "2": 50}, "by": by})
    _save_versions(root, "called", {"weights": {"1": 1}})
    save_scaler(root, "timely", 2, "max_batch_size: 64\ndynamic_batching { }\n" + _TARGET)
    save_identity(root, "tokens", DATATYPES["FP32"][0], _TOKENS)
    save_sign(root, "sign", "max_batch_size: 8\n")
    save_scaler(root, "twofold", 2, "max_batch_size: 8\n")
    steps: list[Step] = [
        ("sign", {"INPUT0": "X"}, {"POSITIVE": "positive"}),
        ("twofold", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
    ]
    conditions = """max_batch_size: 8
    parameters { key: "condition.twofold" value { string_value: "positive" } }
    parameters { key: "default.Y" value { string_value: "-1" } }"""
    save_ensemble(
        root, "conditional", ensemble_config(["X FP32 8"], ["Y FP32 8"], steps, conditions)
    )


def _save_versions(root: Path, name: str, traffic: object) -> None:
    document = json.dumps(json.dumps(traffic))
    config = f'{_VERSIONS}parameters {{ key: "traffic" value {{ string_value: {document} }} }}\n'
    for number in (1, 2):
        save_scaler(root, name, 1 + number, config, number)


def _infer(
    model: str,
    row: bytes,
    *lines: str,
    rows: int = 1,
    parameters: str = "{}",
    name: str = "INPUT0",
    columns: int = 8,
) -> bytes:
    """A request with equal rows, as binary data."""
    data = row * rows
    document = (
        f'{{"parameters":{parameters},"inputs":[{{"name":"{name}","shape":[{rows},{columns}],'
        f'"datatype":"FP32","parameters":{{"binary_data_size":{len(data)}}}}}]}}'
    ).encode()
    length = f"Inference-Header-Content-Length: {len(document)}"
    return post(f"/v2/models/{model}/infer", document + data, length, *lines)


def _once(request: bytes) -> Client:
    return lambda target: ask(target, request)


def _row(value: float) -> bytes:
    return struct.pack("<8f", *[value] * 8)


def _document(path: str, text: str | bytes) -> Client:
    body = text.encode() if isinstance(text, str) else text
    return http_body(lambda: body, _CALLED + path)


def _weights(value: str) -> Client:
    return _document("traffic", f'{{"weights": {{"1": {value}}}}}')


def _rollout(rules: str = "errors<50%", every: str = "3600") -> bytes:
    text = f'{{"to": 2, "steps": [1, 100], "every_seconds": {every}, "if": {json.dumps(rules)}}}'
    return post(_CALLED + "rollout", text.encode())


def _two_rollouts(target: Target) -> str:
    """The outcome of the second one."""
    ask(target, _rollout())
    try:
        return ask(target, _rollout("errors<40%"))
    finally:
        ask(target, _ABORT)


def _one_rollout(target: Target) -> str:
    outcome = ask(target, _rollout())
    ask(target, _ABORT)
    return outcome


def _waiting_for_others(target: Target) -> str:
    """Large requests to a model that would hold a latency target, more than it can serve."""
    request = _infer("timely", _row(1.0), rows=64)
    with ExitStack() as stack:
        clients = [HttpClient(target.http, target.source) for _ in range(8)]
        for client in clients:
            stack.callback(client.close)
            client.pipelined = True
            client.pump(request * 50, until=lambda: True, limit_s=0.5)
        return clients[-1].pump(until=lambda: False, limit_s=1).outcome


def _long_keys(target: Target) -> str:
    """100,000 different keys of 1 KB in headers, or as many as are served within a minute."""
    deadline = time.monotonic() + 60
    outcome = "waiting"
    for begin in range(0, 100_000, 1000):
        if (left_s := deadline - time.monotonic()) < 0:
            break
        client = HttpClient(target.http, target.source)
        client.pipelined = True
        requests = [
            _infer("by_header", _row(1), f"x-user: {number:01000}")
            for number in range(begin, begin + 1000)
        ]
        # The last one ends the connection, once all have their response.
        requests.append(post("/v2/health/live", b"", "Connection: close", method="GET"))
        try:
            outcome = client.pump(b"".join(requests), until=lambda: False, limit_s=left_s).outcome
        finally:
            client.close()
    return outcome


# Each with its harmless twin.
ATTACKS = (
    Attack(
        "a key of 1 MB in a header", _once(_infer("by_header", _row(1), f"x-user: {'k' * _MIB}"))
    ),
    Attack(
        "a key of 1 MB in a parameter",
        _once(_infer("by_parameter", _row(1), parameters=f'{{"user":"{"k" * _MIB}"}}')),
        ANY,
    ),
    Attack("a short key in a header", _once(_infer("by_header", _row(1), "x-user: k")), SERVED),
    *(
        attack
        for each, nightly in ((200, False), (5000, True))
        for attack in (
            Attack(
                f"{20 * each:,} keys in headers",
                flood(lambda number: _infer("by_header", _row(1), f"x-user: {number}"), each=each),
                ANY,
                nightly=nightly,
            ),
            Attack(
                f"{20 * each:,} keys in parameters",
                flood(
                    lambda number: _infer(
                        "by_parameter", _row(1), parameters=f'{{"user":"{number}"}}'
                    ),
                    each=each,
                ),
                ANY,
                nightly=nightly,
            ),
            Attack(
                f"{20 * each:,} keys in tensors",
                flood(lambda number: _infer("by_tensor", _row(number)), each=each),
                ANY,
                nightly=nightly,
            ),
        )
    ),
    Attack("100,000 keys of 1 KB", _long_keys, SERVED, limit_s=90, nightly=True),
    *(
        Attack(f"weights of {value[:20]}", _weights(value))
        for value in ("NaN", "-1", "1e308", "Infinity", "1" * 1000, "1" * _MIB, "[" * 100_000)
    ),
    Attack(
        "weights of two versions", _document("traffic", '{"weights": {"1": 1, "2": 1}}'), SERVED
    ),
    Attack("traffic of 10 MB", _document("traffic", b'{"weights": {"1": ' + b" " * 10 * _MIB)),
    Attack("a rollout of 10 MB", _document("rollout", b'{"to": ' + b" " * 10 * _MIB)),
    Attack("a rollout in brackets", _document("rollout", "[" * 100_000)),
    Attack("a rollout to a million digits", _document("rollout", b'{"to": %b}' % (b"1" * _MIB))),
    *(
        Attack(name, _once(_rollout(rules)))
        for name, rules in {
            "1,000,000 rules": "errors<0.1% " * 1_000_000,
            "a rule of a million digits": f"p99<{'9' * _MIB}x",
            "rules of huge powers": "p99<1e308x errors<1e-308%",
            "a rule of control characters": "p99<1\x1b[2J\n1x",
        }.items()
    ),
    *(
        Attack(f"a rollout every {every[:9]} seconds", _once(_rollout(every=every)))
        for every in ("NaN", "Infinity", "-1", "1e308", "1" * 400)
    ),
    Attack("two rollouts at once", _two_rollouts),
    Attack("one rollout", _one_rollout, SERVED),
    Attack(
        "4,000 rollouts and aborts",
        flood(lambda number: _ABORT if number % 2 else _rollout()),
        ANY,
    ),
    Attack(
        "a condition of NaN",
        _once(_infer("conditional", _row(float("nan")), rows=8, name="X")),
        SERVED,
    ),
    Attack("a condition of no rows", _once(_infer("conditional", b"", rows=0, name="X"))),
    Attack(
        "a condition of 1,000,000 rows", _once(_infer("conditional", _row(1), rows=_MIB, name="X"))
    ),
    Attack("a condition that holds", _once(_infer("conditional", _row(1), name="X")), SERVED),
    Attack("a length of 0", _once(_infer("tokens", b"", columns=0)), ANY),
    Attack("a length of 2^62", _once(_infer("tokens", _row(1), columns=1 << 62))),
    Attack("a length of 2^70", _once(_infer("tokens", _row(1), columns=1 << 70))),
    Attack("a length of -1", _once(_infer("tokens", _row(1), columns=-1))),
    Attack(
        "16 rows of 1,000,000",
        _once(_infer("tokens", bytes(4_000_000), rows=16, columns=1_000_000)),
        ANY,
        more_mib=300,
    ),
    Attack(
        "4,000 lengths",
        flood(lambda number: _infer("tokens", bytes(4 * (1 + number)), columns=1 + number)),
        ANY,
    ),
    Attack("a length of 8", _once(_infer("tokens", _row(1))), SERVED),
    Attack("requests to wait for", _waiting_for_others, ANY),
)
