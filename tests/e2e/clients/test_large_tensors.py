"""Large tensors through the real mesh: in shared memory where processes can share it."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.mesh.large_tensors import (
    BRIEFLY,
    IMAGE,
    Client,
    assert_shared,
    client,
    tensor,
)
from tests.support.mesh.mesh import Mesh, free_port, running, until
from tests.support.mesh.separate_services import ready, service

pytestmark = pytest.mark.slow

MODEL = "identity_fp32"
FLAGS = {"joined": "--join=scheduler", "apart": "--join=none", "grpcio": "--grpc-engine=grpcio"}


@pytest.fixture(
    scope="module",
    params=["joined", "apart", pytest.param("grpcio", marks=pytest.mark.nightly)],
)
def shared(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log, BRIEFLY, FLAGS[request.param]) as mesh:
        yield mesh


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_image_comes_back_as_it_went(shared: Mesh, protocol: str) -> None:
    assert_shared(shared, MODEL, [tensor(IMAGE)] * 3, protocol)


def test_a_large_body_of_another_route_is_read(shared: Mesh) -> None:
    body = b'{"log_verbose_level": 0}' + b" " * 100_000
    headers = {"Inference-Header-Content-Length": "10"}
    request = urllib.request.Request(f"http://{shared.http}/v2/logging", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        assert json.load(response)["log_verbose_level"] == 0


# HTTP has nothing to do with gRPC's engine, and such a size nothing with who is joined.
@pytest.mark.parametrize(
    ("shared", "protocol"),
    [
        ("joined", "http"),
        ("joined", "grpc"),
        pytest.param("grpcio", "grpc", marks=pytest.mark.nightly),
    ],
    indirect=["shared"],
)
def test_a_hundred_megabytes_come_back_as_they_went(shared: Mesh, protocol: str) -> None:
    large = tensor(25_000_000)
    with client(shared, protocol) as one:
        assert np.array_equal(one.infer(MODEL, large), large)


@pytest.mark.parametrize("alone", ["gateway", "scheduler", "executor"])
def test_where_one_side_shares_no_memory_tensors_go_inline(
    alone: str, repository: Path, tmp_path: Path
) -> None:
    address, http_port, grpc_port = f"unix:{tmp_path}/s", free_port(), free_port()
    flags = {
        "scheduler": [f"--model-repository={repository}"],
        "executor": [],
        "gateway": [f"--http-port={http_port}", f"--grpc-port={grpc_port}", "--metrics-port=0"],
    }
    flags[alone].append("--shm-limit-bytes=0")
    image = tensor(IMAGE)
    with contextlib.ExitStack() as stack:
        for name, own in flags.items():
            dial = f"--scheduler-address={address}"
            stack.enter_context(service(name, tmp_path / name, dial, *own))
        until(lambda: ready(http_port, MODEL), "the model")
        for protocol, port in (("http", http_port), ("grpc", grpc_port)):
            one = stack.enter_context(contextlib.closing(Client(protocol, f"127.0.0.1:{port}")))
            for _ in range(2):
                assert np.array_equal(one.infer(MODEL, image), image)
