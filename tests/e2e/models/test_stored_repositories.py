"""A mesh whose models are in an S3 bucket (moto's), beside a repository on disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh, ask, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG, scaled
from tests.support.object_stores.s3_server import (
    BROKEN,
    BUCKET,
    ENVIRON,
    REFUSED,
    S3Server,
    s3_server,
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def mesh(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """In poll mode; each test leaves it serving the factor that it uploaded last."""
    root = tmp_path_factory.mktemp("stored")
    save_scaler(root / "local", "beside", 1, CONFIG)
    upload(s3, root, 1)
    flags = (
        f"--model-repository={s3.url('models')}",
        "--model-control-mode=poll",
        "--repository-poll-secs=0.3",
        f"--repository-cache-directory={root / 'cache'}",
    )
    with running(root / "local", root / "log", *flags) as it:
        yield it


def upload(s3: S3Server, root: Path, factor: int) -> None:
    directory = root / f"factor-{factor}"
    save_scaler(directory, "scaler", factor, CONFIG)
    s3.upload(directory, "models")


def cache_of(mesh: Mesh) -> Path:
    return mesh.log.parent / "cache"


def test_repositories_of_both_kinds(mesh: Mesh) -> None:
    assert {name: each["state"] for name, each in mesh.index().items()} == {
        "beside": "READY",
        "scaler": "READY",
    }
    assert scaled(mesh) == 1


def test_a_changed_model_is_loaded(mesh: Mesh, s3: S3Server, tmp_path: Path) -> None:
    upload(s3, tmp_path, 2)
    until(lambda: scaled(mesh) == 2, "the new factor")


def test_missing_permission_leaves_the_old_version(
    mesh: Mesh, s3: S3Server, tmp_path: Path
) -> None:
    s3.fail = lambda request: REFUSED if request.startswith("GET") and "onnx" in request else None
    upload(s3, tmp_path, 3)
    until(lambda: "access was refused: Access Denied" in mesh.log.read_text(), "the refusal")
    assert scaled(mesh) == 2
    assert mesh.index()["scaler"]["state"] == "READY"
    # Each poll tries again.
    until(lambda: not list((cache_of(mesh) / "trees").glob("*.tmp")), "nothing half-loaded")
    s3.fail = lambda _: None
    until(lambda: scaled(mesh) == 3, "the new factor, once it may be read")


def test_an_executor_that_restarts_needs_no_store(mesh: Mesh, s3: S3Server) -> None:
    factor = scaled(mesh)
    killed = mesh.kill("nereid_executor")
    s3.fail = lambda _: BROKEN
    until(lambda: killed not in mesh.children("nereid_executor"), "the end")
    # The request waits for the next executor, which has the files from the host's cache.
    assert scaled(mesh) == factor
    s3.fail = lambda _: None


def test_a_model_that_is_deleted(mesh: Mesh, s3: S3Server) -> None:
    for entry in s3.client.list_objects_v2(Bucket=BUCKET, Prefix="models/")["Contents"]:
        if entry["Key"].startswith("models/scaler/1"):
            s3.client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    s3.put("models/other/1/.keep", b"")
    s3.client.delete_object(Bucket=BUCKET, Key="models/scaler/config.pbtxt")
    until(lambda: mesh.index().get("scaler", {}).get("state") != "READY", "the unload")
    assert mesh.index()["beside"]["state"] == "READY"


# Nightly the loads end by the scheduler's own limits, which unit tests have with shorter ones.
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_store_that_hangs_holds_no_other_model_up(
    s3: S3Server, tmp_path: Path, *, goes_on: bool
) -> None:
    for name in ("beside", "another"):
        save_scaler(tmp_path / "local", name, 1, CONFIG)
    upload(s3, tmp_path, 1)
    flags = (
        f"--model-repository={s3.url('models')}",
        "--model-control-mode=explicit",
        "--load-model=beside",
    )
    released = threading.Event()
    with running(tmp_path / "local", tmp_path / "log", *flags) as it, ThreadPoolExecutor() as pool:

        def load(name: str) -> int:
            return ask(it.http, f"/v2/repository/models/{name}/load", "POST", b"{}")[0]

        try:
            s3.fail = lambda _: BROKEN if released.wait(60) else None
            others = [pool.submit(load, name) for name in ("scaler", *map(str, range(12)))]
            assert load("another") == HTTPStatus.OK
            assert it.index()["another"]["state"] == "READY"
            if not goes_on:
                released.set()
            assert not any(each.result() == HTTPStatus.OK for each in others)
        finally:
            released.set()
            s3.fail = lambda _: None
        until(lambda: load("scaler") == HTTPStatus.OK, "the store to be asked again")


def test_a_signal_ends_a_start_that_waits_for_a_store(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="needs s3fs")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            (
                *(sys.executable, "-m", "nereid_scheduler"),
                f"--model-repository=s3://{where}/bucket/models",
                f"--scheduler-address=unix:{tmp_path / 'socket'}",
            ),
            env={**os.environ, **ENVIRON},
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(60)
        accepted, _ = silent.accept()
        with accepted:
            process.terminate()
            _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopping before the start was finished: nothing was accepted" in log
