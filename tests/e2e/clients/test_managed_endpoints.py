"""A whole mesh behind SageMaker's and Vertex AI's routes, as those platforms call it."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.mesh.mesh import Mesh, ask, free_port, running, until
from tests.support.models.e2e_models import save_scaler
from tests.support.models.scaler import CONFIG

JOINED = "nereid_mesh.serve.joined"
INPUT = {"name": "INPUT0", "shape": [1, 8], "datatype": "FP32"}


def step(model: str, given: str, made: str) -> str:
    maps = f'input_map {{ key: "INPUT0" value: "{given}" }}'
    maps += f' output_map {{ key: "OUTPUT0" value: "{made}" }}'
    return f'step [ {{ model_name: "{model}" model_version: -1 {maps} }} ]'


ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 16
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 8 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 8 }}
ensemble_scheduling {{
  {step("half", "INPUT0", "between")}
  {step("rest", "between", "OUTPUT0")}
}}
"""


class Platform:
    """Both platforms' agents, which call the mesh from the same machine."""

    def __init__(self, mesh: Mesh, sagemaker: int, vertex: int, root: Path) -> None:
        self.mesh = mesh
        self.sagemaker, self.vertex = f"127.0.0.1:{sagemaker}", f"127.0.0.1:{vertex}"
        self.root = root

    def unpack(self, key: str, models: dict[str, int], **others: str) -> str:
        """An archive of scalers by their factors, and of ensembles; its url. "": the archive is
        the model.
        """
        url = self.root / "archives" / key / "model"
        shutil.rmtree(url, ignore_errors=True)
        for name, factor in models.items():
            # Its configuration has another name than it is served by.
            config = f'name: "{name or "model"}"\n{CONFIG}'
            save_scaler(url if name else url.parent, name or "model", factor, config)
        for name, config in others.items():
            (url / name / "1").mkdir(parents=True)
            (url / name / "config.pbtxt").write_text(config)
        return str(url)

    def load(self, key: str, url: str, **headers: str) -> tuple[int, bytes]:
        body = json.dumps({"model_name": key, "url": url}).encode()
        return ask(self.sagemaker, "/models", "POST", body, headers)

    def loaded(self) -> dict[str, str]:
        status, body = ask(self.sagemaker, "/models")
        assert status == http.HTTPStatus.OK
        return {each["modelName"]: each["modelUrl"] for each in json.loads(body)["models"]}


def infer(address: str, target: str, **headers: str) -> tuple[int, Any]:
    """Status and output of a request for 0 to 7; of an error its text."""
    body = json.dumps({"inputs": [{**INPUT, "data": [*range(8)]}]}).encode()
    status, content = ask(address, target, "POST", body, headers)
    response = json.loads(content)
    ok = status == http.HTTPStatus.OK
    return status, response["outputs"][0]["data"] if ok else response["error"]


def times(factor: int) -> tuple[int, list[int]]:
    return 200, [factor * each for each in range(8)]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Started as the platforms' containers start Triton."""
    root = tmp_path_factory.mktemp("managed")
    save_scaler(root / "models", "solo", 3, CONFIG)
    (root / "archives").mkdir()
    sagemaker, vertex = free_port(), free_port()
    flags = [
        "--allow-sagemaker=true",
        f"--sagemaker-port={sagemaker}",
        f"--sagemaker-models-directory={root / 'archives'}",
        "--sagemaker-safe-port-range=1000-33000",
        "--allow-vertex-ai=true",
        "--vertex-ai-thread-count=4",
        "--vertex-ai-default-model=solo",
        "--model-control-mode=explicit",
        "--model-namespacing=true",
        "--load-model=solo",
    ]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("SAGEMAKER_MULTI_MODEL", "true")
        environ.setenv("AIP_HTTP_PORT", str(vertex))
        environ.setenv("AIP_PREDICT_ROUTE", "/v1/models/solo:predict")
        with running(root / "models", root / "log", *flags) as mesh:
            yield Platform(mesh, sagemaker, vertex, root)


def test_the_only_model(platform: Platform) -> None:
    assert ask(platform.sagemaker, "/ping")[0] == 200
    assert ask(platform.vertex, "/health")[0] == 200
    predict = "/v1/models/solo:predict"
    for address, target in ((platform.sagemaker, "/invocations"), (platform.vertex, predict)):
        assert infer(address, target) == times(3)
    redirect = {"X-Vertex-Ai-Triton-Redirect": "metrics"}
    status, page = ask(platform.vertex, predict, "POST", b"", redirect)
    assert (status, b'nv_inference_request_success{model="solo"' in page) == (200, True)


def test_models_are_loaded_listed_invoked_and_unloaded(platform: Platform) -> None:
    url = platform.unpack("0a1b", {"": 5})
    target_model = {"X-Amzn-SageMaker-Target-Model": "five.tar.gz"}
    assert platform.load("0a1b", url, **target_model)[0] == 200
    status, body = platform.load("0a1b", url, **target_model)
    assert (status, b"loaded already" in body) == (409, True)
    ensemble = platform.unpack("2c3d", {"half": 2, "rest": 4}, whole=ENSEMBLE)
    assert platform.load("2c3d", ensemble)[0] == 200
    # Steps of the same names are of another archive.
    again = platform.unpack("4e5f", {"half": 3, "rest": 4}, whole=ENSEMBLE)
    assert platform.load("4e5f", again)[0] == 200
    parent = str(Path(url).parent)
    expected = {"0a1b": parent, "2c3d": ensemble, "4e5f": again}
    assert platform.loaded() == expected
    shown = ask(platform.sagemaker, "/models/0a1b")
    assert json.loads(shown[1]) == {"modelName": "0a1b", "modelUrl": parent}
    for key, factor in (("0a1b", 5), ("2c3d", 8), ("4e5f", 12)):
        assert infer(platform.sagemaker, f"/models/{key}/invoke", **target_model) == times(factor)
    assert platform.mesh.counts("five.tar.gz")["success"] == 1

    # The gateway that knew of them ends, and the scheduler that had loaded them.
    platform.mesh.kill(JOINED)

    def is_ready() -> bool:
        try:
            return ask(platform.sagemaker, "/ping")[0] == 200
        except OSError:
            return False

    until(is_ready, "the mesh to be ready again")
    assert platform.loaded() == expected
    assert infer(platform.sagemaker, "/models/2c3d/invoke") == times(8)

    for key in expected:
        assert ask(platform.sagemaker, f"/models/{key}", "DELETE")[0] == 200
        # The platform deletes its files now.
        shutil.rmtree(platform.root / "archives" / key)
        assert infer(platform.sagemaker, f"/models/{key}/invoke")[0] == 404
        assert ask(platform.sagemaker, f"/models/{key}", "DELETE")[0] == 404
        assert ask(platform.sagemaker, f"/models/{key}")[0] == 404
    assert platform.loaded() == {}
    folders = [each.name for each in (platform.root / "models").iterdir() if each.name[0] != "."]
    assert folders == ["solo"]
    # It may come back, as another.
    assert platform.load("0a1b", platform.unpack("0a1b", {"only": 7}))[0] == 200
    assert infer(platform.sagemaker, "/models/0a1b/invoke") == times(7)


def test_calls_that_race_have_the_results_of_an_order(platform: Platform) -> None:
    """Of many calls at once that load or unload an archive, one does; others see it whole."""
    url = platform.unpack("7c8d", {"half": 2, "rest": 4}, whole=ENSEMBLE)
    target = "/models/7c8d"
    stopping = threading.Event()

    def read() -> set[tuple[str, object]]:
        seen: set[tuple[str, object]] = set()
        while not stopping.is_set():
            status, output = infer(platform.sagemaker, f"{target}/invoke")
            seen.add(("invoke", tuple(output) if status == http.HTTPStatus.OK else status))
            seen.add(("describe", ask(platform.sagemaker, target)[0]))
            seen.add(("list", platform.loaded().get("7c8d", url)))
        return seen

    with ThreadPoolExecutor(10) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(3):
                loads = [threads.submit(platform.load, "7c8d", url) for _ in range(8)]
                assert sorted(load.result()[0] for load in loads) == [200, *[409] * 7]
                assert infer(platform.sagemaker, f"{target}/invoke") == times(8)
                assert platform.loaded()["7c8d"] == url
                unloads = [
                    threads.submit(ask, platform.sagemaker, target, "DELETE") for _ in range(8)
                ]
                assert sorted(unload.result()[0] for unload in unloads) == [200, *[404] * 7]
                assert "7c8d" not in platform.loaded()
        finally:
            stopping.set()
        # While an archive comes or goes, its steps may be missing, or it is not there.
        allowed = {
            *(("invoke", result) for result in (tuple(times(8)[1]), 400, 404, 503)),
            *(("describe", status) for status in (200, 404)),
            ("list", url),
        }
        for reader in readers:
            assert reader.result() <= allowed
    folders = [each.name for each in (platform.root / "models").iterdir() if each.name[0] != "."]
    assert not [name for name in folders if "7c8d" in name]


def test_loads_that_fail_leave_nothing_behind(platform: Platform) -> None:
    url = platform.unpack("6a7b", {"": 5})
    Path(url, "1", "model.onnx").write_bytes(b"this is no model")
    for key, place, refused in (
        ("6a7b", url, 400),
        ("solo", platform.unpack("solo", {"": 5}), 409),
    ):
        assert platform.load(key, place)[0] == refused
    assert "6a7b" not in platform.loaded()
    assert infer(platform.sagemaker, "/models/6a7b/invoke")[0] == 404
    assert infer(platform.sagemaker, "/models/solo/invoke")[0] == 404
    # It was not harmed by the archive of its name.
    assert infer(platform.vertex, "/v1/models/solo:predict") == times(3)
    assert platform.load("6a7b", platform.unpack("6a7b", {"": 6}))[0] == 200
    assert infer(platform.sagemaker, "/models/6a7b/invoke") == times(6)
