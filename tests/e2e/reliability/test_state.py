"""A scheduler is killed after clients have loaded, unloaded and set things: all is as they left it,
and readiness never says so before it is.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from nereid.core.files import temporary_directories
from nereid.mesh_auth.tokens import new_token
from tests.support.mesh.mesh import START_S, Mesh, ask, running, until
from tests.support.models import accumulators
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG, rows, scaled
from tests.support.peers.redis_server import redis_server

pytestmark = pytest.mark.slow

MODULES = {"scheduler": "nereid_mesh.serve.joined", "none": "nereid_scheduler"}
OVERRIDE = {
    "backend": "onnxruntime",
    "max_batch_size": 5,
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [8]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [8]}],
}
SETTINGS = {"log_verbose_level": 1, "log_info": True}


def places_of(content: bytes) -> list[tuple[str, int]]:
    """The files of load requests of this machine with this content, and their inodes."""
    found = []
    for each in Path(tempfile.gettempdir()).glob(f"{temporary_directories.OVERRIDE}*/1/model.onnx"):
        # Another test's mesh may end meanwhile.
        with contextlib.suppress(OSError):
            if each.read_bytes() == content:
                found.append((str(each), each.stat().st_ino))
    return sorted(found)


class Watcher:
    """Asks without pause whether the server is ready, and right after a yes for the model."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._ending = threading.Event()
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Ends with the block; fails on whatever was wrong by then."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()
        assert self.wrong == []

    def _run(self) -> None:
        body = json.dumps(
            {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}]}
        ).encode()
        while not self._ending.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self._mesh.get("/v2/health/ready")[0]
                self.seen["ready" if status == http.HTTPStatus.OK else "not ready"] += 1
                # Also when it is not ready: the request waits for the model.
                for model in ("scaler", "brought"):
                    path = f"/v2/models/{model}/infer"
                    infer, reply = ask(self._mesh.http, path, "POST", body)
                    if infer == http.HTTPStatus.OK:
                        self.seen["responses"] += 1
                    elif b"unknown model" in reply:
                        self.wrong.append(f"ready: {status}; {model}: {reply!r}")


def step(client: tritonclient.grpc.InferenceServerClient, value: int, **how: bool) -> int:
    tensor = tritonclient.grpc.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
    result = client.infer("sequence", [tensor], sequence_id=7, **how).as_numpy("OUTPUT")
    assert result is not None
    return int(result[0, 0])


@pytest.mark.parametrize("join", [pytest.param("scheduler", marks=pytest.mark.nightly), "none"])
def test_a_killed_scheduler_knows_what_clients_have_loaded_and_set(
    tmp_path: Path, join: str
) -> None:
    models = tmp_path / "models"
    save_scaler(models, "scaler", 1, CONFIG)
    save_scaler(models, "flagged", 1, CONFIG)
    # Nobody else's.
    factor = random.randrange(3, 1 << 20)
    save_scaler(tmp_path / "elsewhere", "scaler", factor, CONFIG)
    brought = (tmp_path / "elsewhere" / "scaler" / "1" / "model.onnx").read_bytes()
    accumulators.save(models, "sequence", "onnxruntime")
    flags = (
        "--model-control-mode=explicit",
        "--load-model=flagged",
        f"--join={join}",
        f"--trace-config=triton,file={tmp_path / 'trace'}",
        "--trace-config=rate=1000",
    )
    with running(models, tmp_path / "log", *flags) as mesh:
        client = tritonclient.grpc.InferenceServerClient(mesh.grpc)
        client.load_model("scaler", config=json.dumps(OVERRIDE))
        files = {"file:1/model.onnx": brought}
        client.load_model("brought", config=json.dumps(OVERRIDE | {"name": "brought"}), files=files)
        client.load_model("sequence")
        client.unload_model("flagged")
        client.update_trace_settings(settings={"trace_rate": "77"})
        client.update_trace_settings(model_name="scaler", settings={"trace_count": "5"})
        client.update_log_settings(SETTINGS)
        assert step(client, 1, sequence_start=True) == 1
        assert step(client, 2) == 3

        watcher = Watcher(mesh)
        with watcher.at_work():
            until(lambda: watcher.seen["ready"] > 2, "the first looks")
            places = places_of(brought)
            pid = mesh.kill(MODULES[join])
            until(lambda: pid not in mesh.children(MODULES[join]), "its end")
            before = watcher.seen["responses"]
            until(lambda: watcher.seen["responses"] > before + 4, "responses after it")
        client.close()
        # Executors that keep the model loaded find it loaded from the same files.
        assert len(places) == 1
        assert places_of(brought) == places

        with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
            until(client.is_server_ready, "readiness")
            states = {name: entry.get("state") for name, entry in mesh.index().items()}
            served = {"scaler": "READY", "brought": "READY", "sequence": "READY"}
            assert states == served | {"flagged": None}
            assert scaled(mesh, 2) == 2
            tensor = tritonclient.grpc.InferInput("INPUT0", [1, 8], "FP32")
            tensor.set_data_from_numpy(rows(2))
            assert (client.infer("brought", [tensor]).as_numpy("OUTPUT0") == 2 * factor).all()
            assert client.get_model_config("scaler").config.max_batch_size == 5
            with pytest.raises(InferenceServerException, match="must specify the START flag"):
                step(client, 3)
            assert step(client, 4, sequence_start=True) == 4
            trace = client.get_trace_settings(as_json=True)["settings"]
            assert trace["trace_rate"]["value"] == ["77"]
            trace = client.get_trace_settings("scaler", as_json=True)["settings"]
            assert trace["trace_count"]["value"] == ["5"]
            assert client.get_log_settings().settings["log_verbose_level"].uint32_param == 1
            if join == "none":
                finish_a_load_whose_scheduler_dies(mesh, client)
        assert "nereid_state_failures_total 0" in mesh.metrics()


def finish_a_load_whose_scheduler_dies(
    mesh: Mesh, client: tritonclient.grpc.InferenceServerClient
) -> None:
    """The gateway calls the next scheduler again."""
    with ThreadPoolExecutor(1) as pool:
        with mesh.held("nereid_executor"):
            load = pool.submit(client.load_model, "flagged")
            until(lambda: mesh.index()["flagged"].get("state") == "LOADING", "the load to begin")
            mesh.kill(MODULES["none"])
        load.result(START_S)
    assert mesh.index()["flagged"]["state"] == "READY"


@pytest.mark.nightly
@pytest.mark.parametrize("join", MODULES)
def test_a_mesh_that_starts_anew_finds_its_state_in_redis(tmp_path: Path, join: str) -> None:
    models = tmp_path / "models"
    save_scaler(models, "scaler", 1, CONFIG)
    (tmp_path / "token").write_text(new_token())
    (tmp_path / "token").chmod(0o600)
    with redis_server(tmp_path) as redis:
        flags = (
            "--model-control-mode=explicit",
            f"--join={join}",
            f"--cache-config=redis,url={redis.url}",
            "--state-name=tests",
            f"--mesh-token-file={tmp_path / 'token'}",
        )
        with (
            running(models, tmp_path / "log", *flags) as mesh,
            tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
        ):
            client.load_model("scaler", config=json.dumps(OVERRIDE))
        with (
            running(models, tmp_path / "log", *flags) as mesh,
            tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
        ):
            until(client.is_server_ready, "readiness")
            assert scaled(mesh, 2) == 2
            assert client.get_model_config("scaler").config.max_batch_size == 5
            # Without Redis all goes on, but for what is kept.
            redis.kill()
            client.unload_model("scaler")
            until(lambda: "nereid_state_failures_total 0" not in mesh.metrics(), "the failure")
            client.load_model("scaler")
            assert scaled(mesh, 2) == 2
