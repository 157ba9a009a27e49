"""Published vulnerabilities on a Triton that has them, as the control, and on Nereid."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.conformance.triton import triton
from tests.conformance.triton.conftest import skipping
from tests.support.hostile.model_names import command_name, load_request
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.siege import memory_mib, processes_below
from tests.support.mesh.mesh import Mesh, ask, free_port, running, until
from tests.support.models import python_models
from tests.support.models.environments import make_environment
from tests.support.peers.shared_memory import Objects, shared_memory_objects

_INFER = "/v2/models/double/infer"
_FLAGS = ("--model-control-mode=explicit", "--load-model=*")
_LIMIT_S = 60.0
_MIB = 1 << 20
_SOURCE = Path(__file__).parents[1] / "python_models" / "double.py"
_CONFIG: Final[dict[str, Any]] = {
    "backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}


def _document(shape: list[int], data: list[float], **members: Any) -> bytes:
    tensor = {"name": "X", "shape": shape, "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor], **members}).encode()


def _chunks() -> bytes:
    """A body in chunks of a byte, each of which costs Triton 16 bytes of its stack."""
    head = f"POST {_INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"1\r\nx\r\n" * 3_000_000 + b"0\r\n\r\n"


def _deep() -> bytes:
    return post(_INFER, b'{"inputs":' + b"[" * 400_000)


def _deep_index() -> bytes:
    return post("/v2/repository/index", b'{"ready":' + b"[" * 1_000_000)


def _large_shape() -> bytes:
    """A shape for which Triton allocates 4 TiB."""
    return post(_INFER, _document([1 << 40], [1, 2]))


def _overflowing_shape() -> bytes:
    """A shape whose size in bytes is 0 in 64 bits, so that Triton's buffer has no element."""
    return post(_INFER, _document([1 << 62], [1.5] * 300_000))


def _large_weight() -> bytes:
    return post(_INFER, _document([2], [1, 2]), "Accept-Encoding: gzip;q=1e9999")


def _bomb(size_bytes: int, text: bytes = b" ") -> bytes:
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(text * _MIB) for _ in range(size_bytes // _MIB)]
    return post(_INFER, b"".join([*packed, packer.flush()]), "Content-Encoding: gzip")


def _send(address: str, request: bytes) -> str:
    client = HttpClient(address, "127.0.0.1")
    try:
        return client.pump(request, until=lambda: False, limit_s=_LIMIT_S).outcome
    finally:
        client.close()


def _load(address: str, **fields: Any) -> int:
    """Load `double` with further fields of its configuration; the status."""
    body = json.dumps({"parameters": {"config": json.dumps(_CONFIG | fields)}}).encode()
    return ask(address, "/v2/repository/models/double/load", "POST", body)[0]


def _post(address: str, path: str, **members: Any) -> tuple[int, bytes]:
    return ask(address, path, "POST", json.dumps(members).encode())


def _repository(root: Path) -> Path:
    python_models.save(root, "talk", python_models.TALK)
    version = root / "double" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_bytes(_SOURCE.read_bytes())
    (root / "double" / "config.pbtxt").write_text(
        'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: [-1] }'
        ' output { name: "Y" data_type: TYPE_FP32 dims: [-1] }'
        " instance_group { count: 1 kind: KIND_CPU }"
    )
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
    flags = (*_FLAGS, "--allow-client-shm=true")
    with running(_repository(tmp_path / "models"), tmp_path / "log", *flags) as started:
        yield started


@pytest.fixture
def objects() -> Iterator[Objects]:
    with shared_memory_objects() as made:
        yield made


def _http(real: triton.Triton) -> str:
    return f"127.0.0.1:{real.server.http_port}"


def _memory(pid: int, name: str) -> float:
    """Memory of the largest process of a server, in MiB."""
    return max(memory_mib(each, name) for each in processes_below(pid))


def _pid(real: triton.Triton) -> int:
    assert real.server.process is not None
    return real.server.process.pid


def _assert_unharmed(mesh: Mesh) -> None:
    assert mesh.process.poll() is None
    for model in ("talk", "double"):
        assert ask(mesh.http, f"/v2/models/{model}/ready")[0] == 200


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (_chunks, "status 4"),
        (_deep, "status 4"),
        (_deep_index, "status 4"),
        (_large_shape, "status 500"),
        (_overflowing_shape, "status 400"),
        # The weight is that of a coding that is not used.
        (_large_weight, "status 200"),
    ],
)
def test_requests_that_end_triton(
    real: triton.Triton, mesh: Mesh, make: Callable[[], bytes], status: str
) -> None:
    assert _send(_http(real), make()) == "closed"
    until(lambda: not real.alive, "tritonserver to end")
    assert _send(mesh.http, make()).startswith(status)
    _assert_unharmed(mesh)


def test_a_models_name_is_a_command_on_triton(
    real: triton.Triton, mesh: Mesh, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    make_environment(environment)
    markers = tmp_path / "triton", tmp_path / "nereid"
    for address, marker in zip((_http(real), mesh.http), markers, strict=True):
        request = load_request(command_name(marker), environment)
        assert _send(address, request) == "status 200"
    assert [marker.exists() for marker in markers] == [True, False]


def test_triton_writes_beyond_a_region(real: triton.Triton, mesh: Mesh, objects: Objects) -> None:
    offset, size = 1 << 36, 4096
    key = objects.make(b"")
    os.truncate(objects.path(key), offset + size)
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    body = _document([2], [1, 2], outputs=[{"name": "Y", "parameters": parameters}])
    for address in (_http(real), mesh.http):
        path = "/v2/systemsharedmemory/region/r/register"
        assert _post(address, path, key=key, offset=offset, byte_size=size)[0] == 200
    # Triton adds the region's offset to an address that has it already.
    assert _send(_http(real), post(_INFER, body)) == "closed"
    until(lambda: not real.alive, "tritonserver to end")
    assert _send(mesh.http, post(_INFER, body)) == "status 200"
    _assert_unharmed(mesh)


def test_a_python_models_memory_is_a_clients_on_triton(real: triton.Triton, mesh: Mesh) -> None:
    own, *_ = Path("/dev/shm").glob(f"nereid_bench_{real.server.http_port}_*")
    path = "/v2/systemsharedmemory/region/stolen/register"
    assert _post(_http(real), path, key=f"/{own.name}", offset=0, byte_size=4096)[0] == 200
    parameters = {"shared_memory_region": "stolen", "shared_memory_byte_size": 32}
    tensor = {"name": "X", "shape": [8], "datatype": "FP32", "parameters": parameters}
    status, response = _post(_http(real), _INFER, inputs=[tensor])
    assert status == 200
    assert any(json.loads(response)["outputs"][0]["data"])
    # Memory without a name cannot be registered.
    mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in processes_below(mesh.process.pid)]
    assert not [maps for maps in mapped if " /dev/shm/" in maps]


def test_an_error_of_triton_names_a_models_memory(venv: Path, mesh: Mesh, tmp_path: Path) -> None:
    """A request that is larger than the memory, of which a container has 64 MiB by default."""
    mount = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh")
    size_bytes = 66_800_000
    parameters = {"binary_data_size": size_bytes}
    shape = [size_bytes // 4]
    tensor = {"name": "X", "shape": shape, "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    body = head.encode() + bytes(size_bytes)
    with skipping():
        models, log = _repository(tmp_path / "real"), tmp_path / "real.log"
        real = triton.Triton(models, log, _FLAGS, wrapper)
    try:
        name = f"nereid_bench_{real.server.http_port}_"
        status, response = ask(_http(real), _INFER, "POST", body, headers)
        assert (status, name.encode() in response) == (500, True)
    finally:
        real.stop()
    status, response = ask(mesh.http, _INFER, "POST", body, headers)
    assert (status, len(response) > size_bytes) == (200, True)


def test_a_region_of_triton_uses_a_closed_descriptor(
    real: triton.Triton, mesh: Mesh, objects: Objects
) -> None:
    key = objects.make(bytes(4096))
    for address, statuses in ((_http(real), [200, 500]), (mesh.http, [200, 200])):
        got = [
            _post(
                address,
                f"/v2/systemsharedmemory/region/{name}/register",
                key=key,
                offset=0,
                byte_size=64,
            )[0]
            for name in ("first", "second")
        ]
        assert got == statuses


def test_a_bomb_grows_in_tritons_memory(real: triton.Triton, mesh: Mesh) -> None:
    bomb = _bomb(512 * _MIB)
    assert len(bomb) < _MIB
    assert _send(_http(real), bomb) == "status 500"
    assert _memory(_pid(real), "VmHWM") > 512
    before = _memory(mesh.process.pid, "VmHWM")
    assert _send(mesh.http, bomb).startswith("status 4")
    assert _memory(mesh.process.pid, "VmHWM") < before + 128
    _assert_unharmed(mesh)


def test_refused_bodies_remain_in_tritons_memory(real: triton.Triton, mesh: Mesh) -> None:
    request = _bomb(8 * _MIB, b"x")
    growth = []
    for address, pid in ((_http(real), _pid(real)), (mesh.http, mesh.process.pid)):
        assert _send(address, request)[:8] in {"status 4", "status 5"}
        before = _memory(pid, "VmRSS")
        for _ in range(30):
            _send(address, request)
        growth.append(_memory(pid, "VmRSS") - before)
    assert growth[0] > 200
    assert growth[1] < 64


def test_any_file_has_labels_on_triton(real: triton.Triton, mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret\n")
    output = _CONFIG["output"][0] | {"label_filename": "../../secret"}
    wanted = [{"name": "Y", "parameters": {"classification": 1}}]
    body = _document([2], [2, 1], outputs=wanted)
    responses = []
    for address, status in ((_http(real), 200), (mesh.http, 400)):
        assert _load(address, output=[output]) == status
        responses.append(ask(address, _INFER, "POST", body)[1])
    assert [b"a secret" in response for response in responses] == [True, False]


def test_an_archive_writes_anywhere_on_triton(
    real: triton.Triton, mesh: Mesh, tmp_path: Path
) -> None:
    for address, folder, written in ((_http(real), "triton", True), (mesh.http, "nereid", False)):
        outside = tmp_path / folder
        outside.mkdir()
        for name, member in (
            ("absolute", str(outside / "absolute")),
            ("dotted", "../" * 20 + str(outside / "dotted")),
        ):
            archive = tmp_path / f"{folder}-{name}.tar.gz"
            with tarfile.open(archive, "w:gz") as file:
                about = tarfile.TarInfo(member)
                about.size = 1
                file.addfile(about, io.BytesIO(b"x"))
            parameters = {"EXECUTION_ENV_PATH": {"string_value": str(archive)}}
            # There is no Python in it.
            assert _load(address, parameters=parameters) == 400
            assert (outside / name).exists() is written


def test_a_model_without_active_instances_ends_triton(real: triton.Triton, mesh: Mesh) -> None:
    passive = _CONFIG["instance_group"][0] | {"passive": True}
    body = _document([2], [1, 2])
    for address in (_http(real), mesh.http):
        assert _load(address, instance_group=[passive]) == 200
    assert _send(_http(real), post(_INFER, body)) == "closed"
    until(lambda: not real.alive, "tritonserver to end")
    assert _send(mesh.http, post(_INFER, body)).startswith("status")
    _assert_unharmed(mesh)


def test_triton_takes_millions_of_requested_outputs(real: triton.Triton, mesh: Mesh) -> None:
    tensor = tritonclient.grpc.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    outputs = [tritonclient.grpc.InferRequestedOutput("Y")] * 2_000_000
    before = _memory(_pid(real), "VmHWM")
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{real.server.grpc_port}") as client:
        client.infer("double", [tensor], outputs=outputs)
    assert _memory(_pid(real), "VmHWM") > before + 256
    with (
        tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
        pytest.raises(InferenceServerException, match="more than 1024 outputs"),
    ):
        client.infer("double", [tensor], outputs=outputs)
    _assert_unharmed(mesh)


def test_a_managed_port_of_triton_has_no_restrictions(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "double")
    body = _document([2], [1, 2])
    ports = free_port(), free_port()
    flags = [
        (
            *(*_FLAGS, "--allow-sagemaker=true", f"--sagemaker-port={port}"),
            "--http-restricted-api=inference:key=value",
        )
        for port in ports
    ]
    with (
        skipping(),
        triton.running(_repository(tmp_path / "real"), tmp_path / "real.log", *flags[0]) as real,
        running(_repository(tmp_path / "models"), tmp_path / "log", *flags[1]) as mesh,
    ):
        for address, port, status in ((_http(real), ports[0], 200), (mesh.http, ports[1], 403)):
            assert ask(address, _INFER, "POST", body)[0] == 403
            assert ask(f"127.0.0.1:{port}", "/invocations", "POST", body)[0] == status
