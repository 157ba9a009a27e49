"""Published vulnerabilities on a Triton that has them, as the control, and on Nereid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.triton import triton
from tests.conformance.triton.conftest import skipping
from tests.support.hostile.model_names import command_name, load_request
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models import python_models
from tests.support.models.environments import make_environment

_INFER = "/v2/models/talk/infer"
_FLAGS = ("--model-control-mode=explicit", "--load-model=*")
_LIMIT_S = 60.0


def _chunks() -> bytes:
    """A body in chunks of a byte, each of which costs Triton 16 bytes of its stack."""
    head = f"POST {_INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"1\r\nx\r\n" * 3_000_000 + b"0\r\n\r\n"


def _deep() -> bytes:
    return post(_INFER, b'{"inputs":' + b"[" * 400_000)


def _send(address: str, request: bytes) -> str:
    client = HttpClient(address, "127.0.0.1")
    try:
        return client.pump(request, until=lambda: False, limit_s=_LIMIT_S).outcome
    finally:
        client.close()


def _repository(root: Path) -> Path:
    python_models.save(root, "talk", python_models.TALK)
    return root


@pytest.fixture
def real(venv: Path, tmp_path: Path) -> Iterator[triton.Triton]:
    with skipping():
        started = triton.Triton(_repository(tmp_path / "real"), tmp_path / "real.log", _FLAGS)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with running(_repository(tmp_path / "models"), tmp_path / "log", *_FLAGS) as started:
        yield started


@pytest.mark.parametrize("make", [_chunks, _deep])
def test_requests_that_end_triton(
    real: triton.Triton, mesh: Mesh, make: Callable[[], bytes]
) -> None:
    assert _send(f"127.0.0.1:{real.server.http_port}", make()) == "closed"
    until(lambda: not real.alive, "tritonserver to end")
    assert _send(mesh.http, make()).startswith("status 4")
    assert mesh.process.poll() is None
    assert ask(mesh.http, "/v2/models/talk/ready")[0] == 200


def test_a_models_name_is_a_command_on_triton(
    real: triton.Triton, mesh: Mesh, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    make_environment(environment)
    markers = tmp_path / "triton", tmp_path / "nereid"
    for address, marker in zip(
        (f"127.0.0.1:{real.server.http_port}", mesh.http), markers, strict=True
    ):
        request = load_request(command_name(marker), environment)
        assert _send(address, request) == "status 200"
    assert [marker.exists() for marker in markers] == [True, False]
