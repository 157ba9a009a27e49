"""Clients' shared memory through the whole mesh: a real model, and NVIDIA's perf_analyzer."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.nvidia_clients import MARKED_PROTOCOLS
from tests.support.mesh.perf_analyzer import COUNTED, measured, needs_analyzer
from tests.support.peers.shared_memory import shared_memory_objects

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mesh_on(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Mesh]]:
    """As the other tests' mesh, but its clients may share memory with it."""
    with ExitStack() as stack:

        @cache
        def started(engine: str) -> Mesh:
            flags = f"--grpc-engine={engine}", "--allow-client-shm=true"
            log = tmp_path_factory.mktemp("mesh") / "log"
            return stack.enter_context(running(repository, log, *flags))

        yield started


on_both_engines = pytest.mark.parametrize(("mesh", "protocol"), MARKED_PROTOCOLS, indirect=["mesh"])


@on_both_engines
def test_models_read_from_and_write_to_shared_memory(mesh: Mesh, protocol: str) -> None:
    client_module: Any = getattr(tritonclient, protocol)
    texts = np.array([[b"a", "é".encode(), b""]], np.object_)
    image = np.random.default_rng(1).random((1, 3 << 18), np.float32)
    with (
        shared_memory_objects() as objects,
        client_module.InferenceServerClient(getattr(mesh, protocol)) as client,
    ):
        for model, array, data in (
            ("identity_fp32", image, image.tobytes()),
            ("identity_bytes", texts, serialize_byte_tensor(texts).item()),
        ):
            size = len(data)
            source, target = objects.make(data), objects.make(bytes(size))
            client.register_system_shared_memory("in", source, size)
            client.register_system_shared_memory("out", target, size)
            metadata = client.get_model_metadata(model)
            names = [
                reported[0]["name"] if protocol == "http" else reported[0].name
                for reported in (
                    (metadata["inputs"], metadata["outputs"])
                    if protocol == "http"
                    else (metadata.inputs, metadata.outputs)
                )
            ]
            datatype = model.removeprefix("identity_").upper()
            tensor = client_module.InferInput(names[0], list(array.shape), datatype)
            tensor.set_shared_memory("in", size)
            output = client_module.InferRequestedOutput(names[1])
            output.set_shared_memory("out", size)
            client.infer(model, [tensor], outputs=[output])
            assert objects.read(target) == data
            tensor.set_shared_memory("in", size - 4)
            with pytest.raises(InferenceServerException, match=r"mismatch|expected 3 string"):
                client.infer(model, [tensor], outputs=[output])
            client.unregister_system_shared_memory()


@needs_analyzer
@pytest.mark.parametrize("mode", [pytest.param("--sync", marks=pytest.mark.nightly), "--async"])
@on_both_engines
def test_perf_analyzer_measures(mesh: Mesh, tmp_path: Path, protocol: str, mode: str) -> None:
    flags = [mode, "--shared-memory=system", "--concurrency-range=8", *COUNTED]
    measured(mesh, protocol, "doubler", tmp_path / "report.csv", *flags)
