"""Repository control over both protocols, in the modes none and explicit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from tests.conformance.exchange import Http, Rpc
from tests.conformance.row import (
    ODD_VALUES,
    Row,
    grouped,
    post,
    row,
    without_poll_reasons,
)


def _reasons_gone(response: Any) -> Any:
    """Why a model did not load is the backend's to say."""
    if isinstance(response, dict):
        index = response.get("json", response.get("reply", {}).get("models"))
        for entry in index if isinstance(index, list) else ():
            if "reason" in entry:
                entry["reason"] = "some"
    return response


def _repository() -> Iterator[Row]:
    document: Any
    for document in (None, {}, {"ready": True}, {"ready": False}, {"x": 1}, []):
        yield row(
            f"index-{json.dumps(document)}", post("repository/index", document), view=_reasons_gone
        )
    for value in ODD_VALUES[2:]:
        yield row(
            f"index-ready-{json.dumps(value)}",
            post("repository/index", {"ready": value}),
            view=_reasons_gone,
        )
    yield row("index-malformed", post("repository/index", body=b"{"), view=_reasons_gone)
    yield row("index-of-one", post("repository/somewhere/index"), view=_reasons_gone)
    for action in ("load", "unload"):
        for name in ("add_sub", "nope", "broken"):
            yield row(f"{action}-{name}", post(f"repository/models/{name}/{action}"))
        yield row(f"{action}-malformed", post(f"repository/models/add_sub/{action}", body=b"{"))
        yield row(
            f"{action}-with-parameters",
            post(f"repository/models/add_sub/{action}", {"parameters": {"x": 1}}),
        )
        yield row(f"{action}-somewhere", post(f"repository/somewhere/models/add_sub/{action}"))
    for ready in (False, True):
        index = pb.RepositoryIndexRequest(ready=ready)
        yield row(f"grpc-index-{ready}", Rpc("RepositoryIndex", index), view=_reasons_gone)
    index = pb.RepositoryIndexRequest(repository_name="x")
    yield row("grpc-index-named", Rpc("RepositoryIndex", index))
    for name in ("add_sub", "nope", ""):
        yield row(
            f"grpc-load-{name}",
            Rpc("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name)),
        )
        yield row(
            f"grpc-unload-{name}",
            Rpc("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name)),
        )
    named = pb.RepositoryModelLoadRequest(model_name="add_sub", repository_name="x")
    yield row("grpc-load-somewhere", Rpc("RepositoryModelLoad", named))


_ADD_SUB: Final = {"max_batch_size": 2}


def _explicit() -> Iterator[Row]:
    """With --model-control-mode=explicit; each row leaves add_sub and versions loaded."""
    index = post("repository/index")
    ready = Http("GET", "/v2/models/add_sub/ready")

    def load(document: Any = None, name: str = "add_sub") -> Http:
        return post(f"repository/models/{name}/load", document)

    def unload(document: Any = None, name: str = "add_sub") -> Http:
        return post(f"repository/models/{name}/unload", document)

    more: dict[str, Any] = {"server": "explicit"}
    parameters: Any
    yield row("index", index, **more)
    yield row("index-ready", post("repository/index", {"ready": True}), **more)
    yield row("load-loaded", load(), ready, **more)
    yield row("load-unknown", load(name="nope"), view=without_poll_reasons, **more)
    yield row("unload-unknown", unload(name="nope"), **more)
    yield row("unload-never-loaded", unload(name="scalar"), **more)
    yield row("load-broken", load(name="broken"), view=_load_reason_gone, **more)
    yield row("load-malformed", post("repository/models/add_sub/load", body=b"{"), ready, **more)
    yield row(
        "unload-malformed",
        post("repository/models/add_sub/unload", body=b"{"),
        ready,
        load(),
        **more,
    )
    for name in ("..", "%2e%2e", "..%2fmodels", "a%2fb"):
        yield row(f"load-{name}", load(name=name), view=without_poll_reasons, **more)
    for parameters in ({"x": 1}, {"config": "{"}, {"config": "x"}, {"config": 1}, {"config": "{}"}, {"config": None}, [], 1, None,
                       {"config": '{"max_batch_size":"x"}'}, {"config": '{"nope":1}'}, {"file:1/model.py": "AAAA"}, {"file:x": 1},
                       {"config": '{"name":"other"}'}):  # fmt: skip
        yield row(
            f"load-parameters-{json.dumps(parameters)}",
            load({"parameters": parameters}),
            ready,
            load(),
            view=_load_reason_gone,
            **more,
        )
    for parameters in ({"unload_dependents": True}, {"unload_dependents": 1}, {"x": 1}, [], None):
        yield row(
            f"unload-parameters-{json.dumps(parameters)}",
            unload({"parameters": parameters}),
            load(),
            ready,
            **more,
        )
    yield row(
        "somewhere",
        post("repository/x/models/add_sub/load"),
        post("repository/x/models/add_sub/unload"),
        load(),
        **more,
    )
    for name in ("nope", "add_sub", ""):
        message = pb.RepositoryModelLoadRequest(model_name=name)
        yield row(
            f"grpc-load-{name}",
            Rpc("RepositoryModelLoad", message),
            view=without_poll_reasons,
            **more,
        )
    for key, value in (("x", {"string_param": "1"}), ("config", {"string_param": "{"}), ("config", {"bool_param": True}), ("config", {}),
                       ("file:1/model.onnx", {"bytes_param": b"x"}), ("file:1/model.onnx", {"string_param": "x"})):  # fmt: skip
        message = pb.RepositoryModelLoadRequest(model_name="add_sub")
        message.parameters[key].CopyFrom(pb.ModelRepositoryParameter(**value))
        yield row(
            f"grpc-load-{key}-{json.dumps(list(value))}",
            Rpc("RepositoryModelLoad", message),
            ready,
            load(),
            view=without_poll_reasons,
            **more,
        )
    message = pb.RepositoryModelUnloadRequest(model_name="nope")
    yield row("grpc-unload-nope", Rpc("RepositoryModelUnload", message), **more)
    smaller = {"parameters": {"config": json.dumps(_ADD_SUB)}}
    yield row("config-override", load(smaller), ready, load(), view=_load_reason_gone, **more)
    plain = json.dumps(_ADD_SUB)[1:-1]
    for name, text in _LENIENT.items():
        config = {"parameters": {"config": f"{{{plain}{text}"}}
        yield row(f"lenient-{name}", load(config), load(), view=_load_reason_gone, **more)


# Behind a configuration without its closing brace: what Triton's parser takes beside JSON, and what
# it does not.
_LENIENT = {
    "comma": ",}",
    "commas": ",,}",
    "list-comma": ', "version_policy": {"specific": {"versions": [1,]}}}',
    "list-of-comma": ', "instance_group": [,]}',
    "bare-key": ", max_batch_size: 3}",
    "bare-keyword": ", true: 3}",
    "bare-value": ', "default_model_filename": x}',
    "single-quotes": ", 'parameters': {'a': {'string_value': 'x'}}}",
    "mixed-quotes": ", 'default_model_filename\": 'model.py'}",
    "escapes": ", parameters: {a: {string_value: '\\q\\'\"\n'}}}",
    "comment": " // x\n}",
    "point": ', "max_batch_size": 3.}',
    "one-element": ', "instance_group": {"count": 1}}',
    "null-element": ', "instance_group": [null]}',
    "enum-case": ', "instance_group": [{"kind": "kind-cpu"}]}',
    "true-as-text": ', "response_cache": {"enable": "false"}}',
    "surplus": "} x",
    "incomplete": "",
}


def _load_reason_gone(response: Any) -> Any:
    response = without_poll_reasons(response)
    if isinstance(response, dict) and isinstance(response.get("json"), dict):
        error = response["json"].get("error", "")
        if error.startswith("load failed for model"):
            response["json"]["error"] = error.partition(" at UNAVAILABLE")[0]
    return response


def rows() -> Iterator[Row]:
    yield from grouped("repository", _repository())
    yield from grouped("explicit", _explicit())
