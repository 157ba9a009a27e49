"""KServe's runtimes: their command lines, and models by explicit control as ModelMesh's adapter for
Triton lays them out, loads and unloads them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from nereid_mesh.serve.planning import plan_mesh
from tests.support.mesh.mesh import Mesh, free_port, until
from tests.support.models.onnx_models import identity, identity_config

KSERVE: Final = Path(__file__).parents[2] / "deploy/kserve"
_MODELMESH_PATH: Final = "/models/_triton_models"


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def container(name: str) -> dict[str, Any]:
    (runtime,) = documents(KSERVE / name)
    (found,) = runtime["spec"]["containers"]
    return dict(found)


def test_both_runtimes_are_one() -> None:
    (everywhere,) = documents(KSERVE / "cluster-serving-runtime.yaml")
    (here,) = documents(KSERVE / "serving-runtime.yaml")
    assert everywhere.pop("kind") == "ClusterServingRuntime"
    assert here.pop("kind") == "ServingRuntime"
    assert here == everywhere
    annotations = here["metadata"]["annotations"]
    assert annotations == {"serving.kserve.io/server-type": "tritonserver"}


def test_samples_name_runtimes_and_formats_that_exist() -> None:
    runtimes = {
        each["metadata"]["name"]: each["spec"]
        for path in KSERVE.glob("*.yaml")
        for each in documents(path)
    }
    samples = [each for path in KSERVE.glob("samples/*.yaml") for each in documents(path)]
    assert len(samples) >= 5
    for sample in samples:
        model = sample["spec"]["predictor"]["model"]
        runtime = runtimes[model["runtime"]]
        formats = [
            {"name": each["name"], "version": each["version"]}
            for each in runtime["supportedModelFormats"]
        ]
        assert model["modelFormat"] in formats
        assert model.get("protocolVersion", "grpc-v2") in runtime["protocolVersions"]


def test_the_command_line_is_accepted(tmp_path: Path) -> None:
    args = container("cluster-serving-runtime.yaml")["args"]
    assert args[:3] == ["--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080"]
    ports = {"9000": free_port(), "8080": free_port()}
    argv = [arg.replace("/mnt/models", str(tmp_path)) for arg in args]
    pairs = [arg.partition("=")[::2] for arg in argv]
    argv = [f"{name}={ports.get(value, value)}" for name, value in pairs]
    argv.append(f"--metrics-port={free_port()}")
    addresses = plan_mesh(str(tmp_path), argv).addresses
    found = {name: address.rpartition(":")[2] for name, address in addresses.items()}
    assert found["http"] == str(ports["8080"])
    assert found["grpc"] == str(ports["9000"])


class Adapter:
    """What ModelMesh's adapter for Triton does, with the same calls and files."""

    def __init__(self, mesh: Mesh, root: Path) -> None:
        self.client = grpcclient.InferenceServerClient(mesh.grpc)
        self._root = root

    def start(self) -> None:
        """Wait for the server, and begin without models."""
        until(self._is_ready, "the server to be ready")
        request = service_pb2.RepositoryIndexRequest(ready=True)
        for each in self.client._client_stub.RepositoryIndex(request).models:
            self.unload(each.name)
        assert self.client.get_server_metadata().version

    def _is_ready(self) -> bool:
        try:
            return bool(self.client.is_server_ready())
        except InferenceServerException:
            return False

    def load_file(self, model: str, file: Path) -> None:
        """A model that is a single file."""
        link = self._root / model / "1" / "model.onnx"
        link.parent.mkdir(parents=True)
        link.symlink_to(file)
        self.client.load_model(model)

    def load_folder(self, model: str, folder: Path) -> None:
        """A model that is a model's folder of a repository, whose configuration loses its name."""
        (self._root / model).mkdir()
        for each in folder.iterdir():
            link = self._root / model / each.name
            if each.name == "config.pbtxt":
                lines = each.read_text().splitlines()
                link.write_text("\n".join(line for line in lines if not line.startswith("name:")))
            else:
                link.symlink_to(each)
        self.client.load_model(model)

    def unload(self, model: str) -> None:
        self.client.unload_model(model)
        shutil.rmtree(self._root / model)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapter]:
    folder = tmp_path_factory.mktemp("modelmesh")
    (command,) = container("modelmesh-serving-runtime.yaml")["args"]
    words = shlex.split(command.partition("exec nereid serve")[2])
    flags = [each for each in words if not each.startswith("--model-repository=")]
    assert f"--model-repository={_MODELMESH_PATH}" in words
    root = folder / "_triton_models"
    root.mkdir()
    mesh = Mesh(root, folder / "log", *flags)
    try:
        adapter = Adapter(mesh, root)
        adapter.start()
        yield adapter
    finally:
        assert mesh.terminate() == 0


def pulled(folder: Path) -> Path:
    """What the puller has downloaded: a model's folder of a repository."""
    identity(folder / "1", "FP32", ["n", 2])
    config = identity_config("FP32", "2")
    (folder / "config.pbtxt").write_text(f'name: "elsewhere"\n{config}')
    return folder


def infer(adapter: Adapter, model: str) -> list[float]:
    tensor = grpcclient.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    return adapter.client.infer(model, [tensor]).as_numpy("y").tolist()[0]  # type: ignore[no-any-return]


def test_models_come_and_go(adapter: Adapter, tmp_path: Path) -> None:
    folder = pulled(tmp_path / "pulled")
    adapter.load_folder("folder__isvc-1", folder)
    adapter.load_file("file__isvc-2", folder / "1/model.onnx")
    assert infer(adapter, "folder__isvc-1") == [1, 2]
    assert infer(adapter, "file__isvc-2") == [1, 2]
    metadata = adapter.client.get_model_metadata("file__isvc-2")
    assert [each.name for each in metadata.inputs] == ["x"]
    adapter.unload("folder__isvc-1")
    with pytest.raises(InferenceServerException):
        infer(adapter, "folder__isvc-1")
    assert infer(adapter, "file__isvc-2") == [1, 2]
    # Its room went to others, and it is wanted again.
    adapter.load_folder("folder__isvc-1", folder)
    assert infer(adapter, "folder__isvc-1") == [1, 2]
    adapter.start()
    assert not adapter.client.is_model_ready("file__isvc-2")
