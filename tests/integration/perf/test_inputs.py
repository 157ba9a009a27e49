"""Made requests of each kind are accepted by a real Nereid, over both protocols."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from nereid_perf.inputs.plan import InputPlan, ModelPlan, ShapeOption
from nereid_perf.inputs.regions import shared_regions
from nereid_perf.inputs.replay import ReplaySource
from nereid_perf.inputs.resolution import new_region_prefix, resolve_plan
from nereid_perf.inputs.source import make_regions, make_source
from nereid_perf.request import Request
from tests.support.mesh.mesh import Mesh, running, until
from tests.support.models import accumulators
from tests.support.models.e2e_models import save_echo

pytestmark = pytest.mark.slow

SERVICE = "/inference.GRPCInferenceService"
PROTOCOLS = ["http", "grpc"]
TEXT = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_STRING dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: [-1] }
"""


class Control:
    """What a plan and its regions ask of a server, over HTTP."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        assert not version
        return self._exchange("GET", f"/v2/models/{model}")

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        assert not version
        return self._exchange("GET", f"/v2/models/{model}/config")

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0
    ) -> None:
        body = json.dumps({"key": key, "byte_size": byte_size, "offset": offset}).encode()
        self._exchange("POST", f"/v2/systemsharedmemory/region/{name}/register", body)

    def unregister_system_shared_memory(self, name: str = "") -> None:
        self._exchange("POST", f"/v2/systemsharedmemory/region/{name}/unregister", b"{}")

    def regions(self) -> list[str]:
        _, body = self._mesh.get("/v2/systemsharedmemory/status")
        return [each["name"] for each in json.loads(body)]

    def _exchange(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        status, content = self._mesh.get(path, method, body)
        assert status == http.client.OK, content
        return dict(json.loads(content or b"{}"))


Send = Callable[[Request, str], tuple[bytes, int]]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("perf")
    models = root / "models"
    save_echo(models, "echo")
    (models / "text" / "1").mkdir(parents=True)
    (models / "text" / "config.pbtxt").write_text(TEXT)
    accumulators.save(models, "sequence", "onnxruntime")
    accumulators.save(models, "string_dyna_sequence", "onnxruntime")
    trace = f"triton,file={root / 'trace.json'}"
    flags = [f"--trace-config={each}" for each in (trace, "rate=0")]
    with running(models, root / "log", "--allow-client-shm=true", *flags) as it:
        yield it


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def send(mesh: Mesh, protocol: str) -> Iterator[Send]:
    """Sends a request to a model as it is: the response without framing, its JSON's length."""
    if protocol == "grpc":
        with grpc.insecure_channel(mesh.grpc) as channel:
            # No serializers: bytes in, bytes out.
            call: Any = channel.unary_unary(f"{SERVICE}/ModelInfer")
            yield lambda request, _: (call(request.message, timeout=20), 0)
        return
    connection = http.client.HTTPConnection(mesh.http, timeout=20)

    def exchange(request: Request, model: str) -> tuple[bytes, int]:
        headers = {}
        if request.json_bytes:
            headers["Inference-Header-Content-Length"] = str(request.json_bytes)
        connection.request("POST", f"/v2/models/{model}/infer", request.message, headers)
        response = connection.getresponse()
        content = response.read()
        assert response.status == http.client.OK, content
        return content, int(response.headers.get("Inference-Header-Content-Length") or 0)

    yield exchange
    connection.close()


def resolved(mesh: Mesh, protocol: Any, *models: ModelPlan, **more: Any) -> InputPlan:
    return resolve_plan(InputPlan(protocol, models, **more), Control(mesh))


def mismatches(plan: InputPlan, send: Send, count: int) -> list[str]:
    """Of so many requests' responses."""
    source = make_source(plan)
    found = []
    for _ in range(count):
        request = source.next_request()
        assert request is not None
        response = send(request, plan.models[request.workload].name)
        source.on_end(request)
        found.append(source.find_mismatch(request, *response))
    return found


def data_file(path: Path, name: str, steps: list[Any], expected: list[Any]) -> str:
    file = path / name
    file.write_text(json.dumps({"data": steps, "validation_data": expected}))
    return str(file)


@pytest.mark.parametrize("is_json", [False, True])
def test_plain_requests(
    mesh: Mesh, protocol: str, send: Send, tmp_path: Path, is_json: bool
) -> None:
    steps = [{"INPUT0": [number, 2, 3]} for number in range(3)]
    expected = [{"OUTPUT0": [number, 2, 3]} for number in range(3)]
    data = data_file(tmp_path, "data.json", steps, expected)
    model = ModelPlan(
        "echo", batch_size=2, input_data=(data,), parameters=(("p", "v"),), priority=1
    )
    formats = {"has_json_inputs": is_json, "has_json_outputs": is_json}
    plan = resolved(mesh, protocol, model, request_ids=True, **formats)
    assert mismatches(plan, send, 4) == [""] * 4
    # The comparison sees what is wrong.
    expected[1] = {"OUTPUT0": [1, 2, 4]}
    data_file(tmp_path, "wrong.json", steps, expected)
    wrong = replace(model, input_data=(str(tmp_path / "wrong.json"),), outputs=("OUTPUT0",))
    found = mismatches(resolved(mesh, protocol, wrong, **formats), send, 1)
    assert found == ["output 'OUTPUT0': element 5 is 3.0, expected 4.0"]


def test_made_up_tensors_are_accepted(mesh: Mesh, protocol: str, send: Send) -> None:
    shape = (ShapeOption("INPUT0", (4,)),)
    for data in ("random", "zero"):
        models = [ModelPlan(name, shapes=shape, input_data=(data,)) for name in ("echo", "text")]
        assert mismatches(resolved(mesh, protocol, *models), send, 6) == [""] * 6


def test_strings(mesh: Mesh, protocol: str, send: Send, tmp_path: Path) -> None:
    texts = ["é", "", 'a"b']
    data = data_file(tmp_path, "data.json", [{"INPUT0": texts}], [{"OUTPUT0": texts}])
    for is_json in (False, True):
        plan = resolved(
            mesh, protocol, ModelPlan("text", input_data=(data,)), has_json_inputs=is_json
        )
        assert mismatches(plan, send, 2) == ["", ""]


def test_sequences_add_up(mesh: Mesh, protocol: str, send: Send, tmp_path: Path) -> None:
    streams = [[1, 2, 3], [10, 20]]
    sums = [[1, 3, 6], [10, 30]]
    data = data_file(
        tmp_path,
        "data.json",
        [[{"INPUT": [value]} for value in stream] for stream in streams],
        [[{"OUTPUT": [value]} for value in stream] for stream in sums],
    )
    model = ModelPlan("sequence", input_data=(data,))
    plan = resolved(mesh, protocol, model, sequences=1, sequence_ids=(1000, 2000))
    assert mismatches(plan, send, 10) == [""] * 10
    # Without data: a sequence that ends would fail in the middle if its flags were wrong.
    model = ModelPlan("string_dyna_sequence", sequence_length=3, sequence_length_variation=0.0)
    plan = resolved(mesh, protocol, model, sequences=2)
    assert mismatches(plan, send, 12) == [""] * 12


def test_shared_memory(mesh: Mesh, protocol: str, send: Send) -> None:
    models = [
        ModelPlan("echo", batch_size=2, shapes=(ShapeOption("INPUT0", (16,)),)),
        ModelPlan("text", shapes=(ShapeOption("INPUT0", (3,)),)),
    ]
    plan = resolved(mesh, protocol, *models, distinct_inputs=3, region_prefix=new_region_prefix())
    inputs, outputs, text_inputs, text_outputs = regions = make_regions(plan)
    control = Control(mesh)
    with shared_regions(regions, control):
        assert len(control.regions()) == 4
        source = make_source(plan)
        for _ in range(6):
            request = source.next_request()
            assert request is not None
            response, _ = send(request, plan.models[request.workload].name)
            assert b"OUTPUT0" in response
            sent = (inputs, text_inputs)[request.workload]
            got = (outputs, text_outputs)[request.workload]
            content = sent.contents[request.data][1]
            written = Path(f"/dev/shm/{got.name}").read_bytes()
            assert written[: len(content)] == content
    assert control.regions() == []
    assert not [*Path("/dev/shm").glob(f"{plan.region_prefix}*")]


def test_own_trace_is_replayed(mesh: Mesh, protocol: str, send: Send, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"at_s": 3, "model": "echo", "inputs": {"INPUT0": {"shape": [2, 5]}}},
        {"at_s": 1, "model": "text", "inputs": {"INPUT0": {"shape": [1, 2], "string_bytes": 9}}},
    ]
    for at, value in enumerate((5, 6, 7)):
        place = {"id": 77, "start": at == 0, "end": at == 2}
        values = {"INPUT": {"shape": [1, 1], "data": [value]}}
        lines.append({"at_s": at, "model": "sequence", "sequence": place, "inputs": values})
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    plan = resolved(mesh, protocol, traces=(str(file),), has_json_outputs=True)
    source = make_source(plan)
    sums = []
    while (request := source.next_request()) is not None:
        name = plan.models[request.workload].name
        response, _ = send(request, name)
        source.on_end(request)
        if name == "sequence" and protocol == "http":
            sums += json.loads(response)["outputs"][0]["data"]
        elif name == "sequence":
            sums.append(int.from_bytes(infer_response(response).raw_output_contents[0], "little"))
    assert sums == [5, 11, 18]


def infer_response(message: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(message)


def test_traces_that_nereid_wrote_are_replayed(
    mesh: Mesh, protocol: str, send: Send, tmp_path: Path
) -> None:
    settings = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "3"}
    for name in ("echo", "text"):
        status, _ = mesh.get(
            f"/v2/models/{name}/trace/setting", "POST", json.dumps(settings).encode()
        )
        assert status == http.client.OK
    models = [
        ModelPlan("echo", batch_size=2, shapes=(ShapeOption("INPUT0", (3,)),)),
        ModelPlan("text", shapes=(ShapeOption("INPUT0", (2,)),), string_data="some text"),
    ]
    mismatches(resolved(mesh, protocol, *models), send, 6)
    written = mesh.log.parent

    def files() -> tuple[str, ...]:
        return tuple(str(each) for each in sorted(written.glob("trace.json*")))

    def text_of_all() -> bytes:
        return b"".join(Path(each).read_bytes() for each in files())

    until(lambda: all(name in text_of_all() for name in (b'"echo"', b'"text"')), "all traces")
    plan = resolved(mesh, protocol, traces=files())
    assert {each.name for each in plan.models} == {"echo", "text"}
    source = make_source(plan)
    assert isinstance(source, ReplaySource)
    assert [*source.arrivals_ns] == sorted(source.arrivals_ns)
    shapes = set()
    while (request := source.next_request()) is not None:
        response, _ = send(request, plan.models[request.workload].name)
        source.on_end(request)
        if protocol == "grpc":
            message = infer_response(response)
            shapes.add((message.model_name, *message.outputs[0].shape))
            if message.model_name == "text":
                assert b"some text" in message.raw_output_contents[0]
    assert shapes == ({("echo", 2, 3), ("text", 1, 2)} if protocol == "grpc" else set())
