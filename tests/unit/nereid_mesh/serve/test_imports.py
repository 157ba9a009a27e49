"""What processes import at their start, of what takes long: a start waits for all of it."""

import subprocess
import sys

import pytest

_PROGRAM = "import sys; import {module}; print(*sys.modules)"
# Of packages that take tens of milliseconds, those that not every mesh needs.
_OPTIONAL = {"grpc", "jwt", "onnxruntime", "opentelemetry", "redis", "re2"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        # Before the first process is started.
        ("nereid.cli", _OPTIONAL | {"ast", "dataclasses", "email", "importlib.metadata"}),
        ("nereid_mesh.serve.command", _OPTIONAL | {"numpy", "asyncio", "dataclasses", "tempfile"}),
        (
            "nereid_mesh.serve.planned_mesh",
            _OPTIONAL | {"numpy", "uvloop", "google.protobuf", "http.client"},
        ),
        ("nereid_mesh.serve.planning", _OPTIONAL | {"numpy", "google.protobuf", "tomllib"}),
        ("nereid_mesh.serve.joined", _OPTIONAL | {"numpy", "tomllib"}),
        ("nereid_gateway.__main__", _OPTIONAL | {"numpy", "tomllib"}),
        ("nereid_scheduler.__main__", _OPTIONAL | {"numpy"}),
        ("nereid_executor.__main__", _OPTIONAL),
    ],
    ids=lambda value: value.removeprefix("nereid.") if isinstance(value, str) else "",
)
def test_a_start_does_not_import_what_may_not_be_needed(module: str, unwanted: set[str]) -> None:
    command = [sys.executable, "-c", _PROGRAM.format(module=module)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert set(done.stdout.split()) & unwanted == set()
