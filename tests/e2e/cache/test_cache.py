"""The response cache through the whole mesh, beside the scheduler and as a process of its own."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.mesh.large_tensors import client, tensor
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models.e2e_models import DATATYPES, save_identity, save_multiplier
from tests.support.peers.redis_server import RedisServer, redis_server
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

pytestmark = pytest.mark.slow

_CONFIG = """
backend: "onnxruntime"
instance_group [{ count: 1 kind: KIND_CPU }]
"""
_CACHED = "response_cache { enable: true }\n"


def write_model(repository: Path, name: str, factor: int, *, cached: bool = True) -> None:
    """Slow enough that many requests are in flight while the first one runs."""
    save_multiplier(repository, name, factor, _CONFIG + (_CACHED if cached else ""))


@pytest.fixture(
    scope="module", params=["scheduler", pytest.param("none", marks=pytest.mark.nightly)]
)
def it(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("cached")
    write_model(root / "models", "triple", 3)
    write_model(root / "models", "plain", 3, cached=False)
    for name, more in (("copy", ""), ("kept", _CACHED)):
        config = f"max_batch_size: 4\n{_CONFIG}{more}"
        save_identity(root / "models", name, DATATYPES["FP32"][0], config)
    steps = [
        ("copy", {"INPUT0": "X"}, {"OUTPUT0": "m"}),
        ("kept", {"INPUT0": "m"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    inner = ensemble_config(["X FP32 -1"], ["OUTPUT0 FP32 -1"], steps, "max_batch_size: 4\n")
    save_ensemble(root / "models", "inner", inner)
    outer = [("inner", {"X": "INPUT0"}, {"OUTPUT0": "OUTPUT0"})]
    whole = ensemble_config(
        ["INPUT0 FP32 -1"], ["OUTPUT0 FP32 -1"], outer, "max_batch_size: 4\n" + _CACHED
    )
    save_ensemble(root / "models", "whole", whole)
    flags = (f"--join={request.param}", "--cache-config=local,size=10000000")
    # Neither a busy machine nor a slow start shall look like a miss.
    with running(root / "models", root / "log", *flags, "--cache-timeout-ms=10000") as mesh:
        warm(mesh, "triple")
        yield mesh


def warm(mesh: Mesh, model: str, value: int = 999) -> None:
    """Until the cache is reached: what has been asked twice was a hit."""
    before = mesh.counts(model)["cache_hit"]

    def hit() -> bool:
        infer(mesh, model, value)
        return bool(mesh.counts(model)["cache_hit"] > before)

    until(hit, "the first hit")


def infer(
    mesh: Mesh, model: str, value: int, outputs: tuple[str, ...] = ("O",), **parameters: Any
) -> dict[str, int] | str:
    body: dict[str, Any] = {
        "inputs": [{"name": "I", "datatype": "INT64", "shape": [1], "data": [value]}],
        "outputs": [{"name": name} for name in outputs],
    }
    if parameters:
        body["parameters"] = parameters
    _, reply = mesh.get(f"/v2/models/{model}/infer", "POST", json.dumps(body).encode())
    response = json.loads(reply)
    if "error" in response:
        return str(response["error"])
    return {each["name"]: each["data"][0] for each in response["outputs"]}


def grown(mesh: Mesh, model: str, before: dict[str, int]) -> dict[str, int]:
    after = mesh.counts(model)
    names = ("execution_count", "inference_count", "success", "fail", "cache_hit", "cache_miss")
    return {name: after[name] - before[name] for name in names if after[name] != before[name]}


def test_many_alike_at_once_run_once_and_the_next_is_a_hit(it: Mesh) -> None:
    before = it.counts("triple")
    with ThreadPoolExecutor(64) as pool:
        responses = list(pool.map(lambda _: infer(it, "triple", 14), range(64)))
    assert responses == [{"O": 42}] * 64
    assert grown(it, "triple", before) == {
        "execution_count": 1,
        "inference_count": 1,
        "success": 64,
        "cache_hit": 63,
        "cache_miss": 1,
    }
    before = it.counts("triple")
    assert infer(it, "triple", 14) == {"O": 42}
    assert grown(it, "triple", before) == {"success": 1, "cache_hit": 1}
    assert 'nv_cache_num_hits_per_model{model="triple",version="1"}' in it.metrics()


@pytest.mark.parametrize("size", [100, 100_000], ids=["inline", "shared"])
def test_a_step_shares_responses_with_clients(it: Mesh, size: int) -> None:
    array = tensor(size, seed=size)
    hit, miss = {"success": 1, "cache_hit": 1}, {"success": 1, "cache_miss": 1}
    executed = {"execution_count": 1, "inference_count": 1}
    for protocol, turns in (
        ("http", (("kept", miss | executed), ("whole", hit), ("kept", hit), ("whole", {}))),
        ("grpc", (("whole", miss | executed), ("kept", hit), ("whole", {}), ("kept", hit))),
    ):
        array = -array
        for model, wanted in turns:
            before, whole = it.counts("kept"), it.counts("whole")
            with client(it, protocol) as one:
                assert np.array_equal(one.infer(model, array), array)
            assert grown(it, "kept", before) == wanted
            if model == "whole":
                assert grown(it, "whole", whole) == (miss | executed if wanted else hit)


@contextlib.contextmanager
def cache_service(address: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "nereid_cache", f"--cache-listen={address}", *flags]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def test_with_a_token_a_cache_outlives_the_mesh_but_no_change_of_a_model(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'cache.sock'}"
    (tmp_path / "token").write_text("a token of this mesh")
    token = f"--mesh-token-file={tmp_path / 'token'}"
    models = tmp_path / "models"
    for name in ("same", "changed"):
        write_model(models, name, 3)
    flags = (f"--cache-address={address}", "--cache-timeout-ms=10000", token)
    with cache_service(address, token):
        with running(models, tmp_path / "log1", *flags) as mesh:
            for name in ("same", "changed"):
                warm(mesh, name)
                assert infer(mesh, name, 5) == {"O": 15}
        write_model(models, "changed", 4)
        with running(models, tmp_path / "log2", *flags) as mesh:
            warm(mesh, "same")
            before = mesh.counts("same")
            assert infer(mesh, "same", 5) == {"O": 15}
            assert grown(mesh, "same", before) == {"success": 1, "cache_hit": 1}
            assert infer(mesh, "changed", 5) == {"O": 20}


@pytest.mark.parametrize("join", [pytest.param("scheduler", marks=pytest.mark.nightly), "none"])
def test_what_others_write_to_redis_is_a_miss(tmp_path: Path, join: str) -> None:
    write_model(tmp_path / "models", "triple", 3)
    with redis_server(tmp_path) as server:
        flags = (f"--join={join}", f"--cache-config=redis,url={server.url}")
        with running(
            tmp_path / "models", tmp_path / "log", *flags, "--cache-timeout-ms=10000"
        ) as mesh:
            warm(mesh, "triple")
            known = names_in(server)
            assert infer(mesh, "triple", 5) == {"O": 15}
            until(lambda: len(names_in(server)) > len(known), "the value in Redis")
            (name,) = names_in(server) - known
            assert re.fullmatch(r"nereid:([0-9a-f]{64}){3}", name)
            # A byte more, another request's value under this name, and none of Nereid's.
            for command in (
                ("APPEND", name, "x"),
                ("COPY", known.pop(), name, "REPLACE"),
                ("SET", name, "x"),
            ):
                assert not server.command(*command).startswith(b"-")
                before = mesh.counts("triple")
                assert infer(mesh, "triple", 5) == {"O": 15}
                assert grown(mesh, "triple", before).get("cache_miss") == 1
                # What is stored in its place is found.
                warm(mesh, "triple", 5)
    assert "that this mesh did not store" in (tmp_path / "log").read_text()


def names_in(server: RedisServer) -> set[str]:
    return {word.decode() for word in server.command("KEYS", "*").split() if b":" in word}


def test_an_ensemble_is_kept_until_a_model_of_it_changes(tmp_path: Path) -> None:
    root = tmp_path / "models"
    save_multiplier(root, "first", 3, _CONFIG)
    save_multiplier(root, "second", 5, _CONFIG)
    steps = [("first", {"I": "X"}, {"O": "m"}), ("second", {"I": "m"}, {"O": "O"})]
    config = ensemble_config(["X INT64 1"], ["O INT64 1"], steps)
    save_ensemble(root, "inner", config)
    outer = [("inner", {"X": "I"}, {"O": "O"})]
    save_ensemble(root, "outer", ensemble_config(["I INT64 1"], ["O INT64 1"], outer, _CACHED))
    flags = ("--cache-config=local,size=10000000", "--cache-timeout-ms=10000")
    control = ("--model-control-mode=explicit", "--load-model=outer")
    with running(root, tmp_path / "log", *flags, *control) as mesh:
        warm(mesh, "outer", 1)
        before, below = mesh.counts("outer"), mesh.counts("second")
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _: infer(mesh, "outer", 2), range(8)))
        assert responses == [{"O": 30}] * 8
        one = {"execution_count": 1, "inference_count": 1}
        assert grown(mesh, "outer", before) == {
            **one,
            "success": 8,
            "cache_hit": 7,
            "cache_miss": 1,
        }
        assert grown(mesh, "second", below) == {**one, "success": 1}
        save_multiplier(root, "second", 7, _CONFIG)
        assert mesh.get("/v2/repository/models/second/load", "POST", b"{}")[0] == 200
        assert infer(mesh, "outer", 2) == {"O": 42}
        before = mesh.counts("outer")
        assert infer(mesh, "outer", 2) == {"O": 42}
        assert grown(mesh, "outer", before) == {"success": 1, "cache_hit": 1}
