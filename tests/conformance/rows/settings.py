"""Trace and log settings over both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc
from tests.conformance.row import ODD_VALUES, Row, grouped, post, row

_LOG_DEFAULTS: Final = {
    "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "default",
}  # fmt: skip


def _logging() -> Iterator[Row]:
    get, reset = Http("GET", "/v2/logging"), post("logging", _LOG_DEFAULTS)
    yield row("defaults", reset, get)
    for key in ("log_info", "log_verbose_level", "log_format", "log_file", "x"):
        for value in ODD_VALUES:
            yield row(f"{key}-{json.dumps(value)}", post("logging", {key: value}), get, reset)
    for value in ("ISO8601", "default", "iso8601"):
        yield row(f"format-{value}", post("logging", {"log_format": value}), get, reset)
    for body in (b"", b"{", b"[]", b"1", b"null"):
        yield row(f"body-{body.decode()}", post("logging", body=body))
    yield row(
        "several",
        post("logging", {"log_info": False, "log_error": False, "log_verbose_level": 2}),
        get,
        reset,
    )
    yield row("good-and-bad", post("logging", {"log_info": False, "log_error": 1}), get, reset)

    def ask(**settings: Any) -> Rpc:
        values = {
            key: pb.LogSettingsRequest.SettingValue(**value) for key, value in settings.items()
        }
        return Rpc("LogSettings", pb.LogSettingsRequest(settings=values))

    yield row("grpc-get", reset, ask())
    for key in ("log_info", "log_verbose_level", "log_format", "log_file", "x"):
        for value in (
            {"bool_param": False},
            {"uint32_param": 1},
            {"string_param": "x"},
            {},
            {"string_param": "ISO8601"},
        ):
            yield row(f"grpc-{key}-{json.dumps(value)}", ask(**{key: value}), ask(), reset)


def _trace() -> Iterator[Row]:
    everything = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
    yield row("defaults", Http("GET", "/v2/trace/setting"))
    for scope in ("trace/setting", "models/add_sub/trace/setting"):
        get, reset = Http("GET", f"/v2/{scope}"), post(scope, everything)
        yield row(f"{scope}-get", get)
        for key in (*everything, "trace_file", "trace_mode", "x"):
            for value in (*ODD_VALUES[1:11], "-1", "-2", "7", "4294967296", "99999999999999999999"):
                yield row(
                    f"{scope}-{key}-{json.dumps(value)}", post(scope, {key: value}), get, reset
                )
        for levels in (
            ["OFF"],
            ["TIMESTAMPS"],
            ["TENSORS"],
            ["TIMESTAMPS", "TENSORS"],
            ["OFF", "TENSORS"],
            ["x"],
            [1],
            [],
            ["timestamps"],
        ):
            yield row(
                f"{scope}-levels-{json.dumps(levels)}",
                post(scope, {"trace_level": levels}),
                get,
                reset,
            )
        for body in (b"", b"{", b"[]", b"1"):
            yield row(f"{scope}-body-{body.decode()}", post(scope, body=body))
    for name in ("nope", "broken"):
        yield row(f"get-{name}", Http("GET", f"/v2/models/{name}/trace/setting"))
        yield row(f"post-{name}", post(f"models/{name}/trace/setting", {"trace_rate": "7"}))
        yield row(f"malformed-{name}", post(f"models/{name}/trace/setting", body=b"{"))
    yield row("version", Http("GET", "/v2/models/add_sub/versions/1/trace/setting"))

    def ask(model: str = "", **settings: list[str]) -> Rpc:
        values = {
            key: pb.TraceSettingRequest.SettingValue(value=value) for key, value in settings.items()
        }
        return Rpc("TraceSetting", pb.TraceSettingRequest(model_name=model, settings=values))

    clear = {key: list[str]() for key in everything}
    for model in ("", "add_sub", "nope"):
        yield row(f"grpc-get-{model}", ask(model))
        for key in (*everything, "trace_file", "x"):
            for value in (
                [],
                ["x"],
                ["1"],
                ["1", "2"],
                ["-1"],
                ["-2"],
                ["4294967296"],
                [""],
                ["TIMESTAMPS"],
                ["OFF", "TENSORS"],
            ):
                yield row(
                    f"grpc-{model}-{key}-{json.dumps(value)}",
                    ask(model, **{key: value}),
                    ask(model),
                    ask(model, **clear),
                )


def rows() -> Iterator[Row]:
    yield from grouped("logging", _logging())
    yield from grouped("trace", _trace())
