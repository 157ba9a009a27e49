"""SageMaker's and Vertex AI's ports of the real tritonserver beside Nereid's."""

from __future__ import annotations

import http.client
import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.triton import triton
from tests.conformance.triton.conftest import skipping
from tests.support.mesh.mesh import free_port, running

SOURCE = Path(__file__).parents[1] / "python_models" / "double.py"
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
instance_group { count: 1 kind: KIND_CPU }
"""
LENGTH = "Inference-Header-Content-Length"
ENSEMBLE = """
name: "twice"
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling { step [
  { model_name: "inner" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
  { model_name: "inner" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
] }
"""
REDIRECT = "X-Vertex-Ai-Triton-Redirect"
DATA = json.dumps(
    {"inputs": [{"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
).encode()
NEGATIVE = DATA.replace(b"[1, 2]", b"[1,-2]")
TENSOR = struct.pack("<2f", 1, 2)
HEADER = json.dumps(
    {
        "inputs": [
            {
                "name": "X",
                "shape": [2],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(TENSOR)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()


# Requests whose responses are equal byte for byte.
SAME = frozenset({DATA, NEGATIVE, b"{", b"{}", HEADER + TENSOR})


class Row(NamedTuple):
    """A request to one of the ports. differs: Nereid's status, where it is another."""

    port: str
    method: str
    target: str
    body: bytes = b""
    content_type: str = "application/json"
    redirect: str = ""
    differs: int | None = None


def binary(
    port: str,
    target: str,
    length: int | str = len(HEADER),
    prefix: str = "",
    differs: int | None = None,
) -> Row:
    form = f"{prefix}application/vnd.{port}-triton.binary+json;json-header-size={length}"
    return Row(port, "POST", target, HEADER + TENSOR, form, differs=differs)


def redirected(to: str, body: bytes = b"", method: str = "POST", differs: int | None = None) -> Row:
    return Row("vertex-ai", method, "/predict", body, redirect=to, differs=differs)


def load(document: object) -> Row:
    return Row("sagemaker", "POST", "/models", json.dumps(document).encode())


ROWS = [
    Row("sagemaker", "GET", "/ping"),
    Row("sagemaker", "POST", "/ping"),
    Row("sagemaker", "GET", "/invocations"),
    Row("sagemaker", "GET", "/v2/health/ready"),
    # Methods that a route does not have are named as such.
    Row("sagemaker", "PUT", "/models", differs=405),
    Row("sagemaker", "GET", "/models"),
    Row("sagemaker", "GET", "/models/none"),
    Row("sagemaker", "DELETE", "/models/none"),
    Row("sagemaker", "POST", "/models/none/invoke", DATA),
    load({"model_name": "a", "url": "/opt/ml/models/a/model"}),
    load([]),
    Row("vertex-ai", "GET", "/health"),
    Row("vertex-ai", "GET", "/ping"),
    Row("vertex-ai", "GET", "/predict"),
    redirected("v2"),
    redirected("v2", method="GET"),
    redirected("v2/models/solo"),
    redirected("v2/models/solo/config"),
    redirected("v2/models/solo/ready"),
    redirected("v2/models/none/ready"),
    redirected("v2/models/stats"),
    redirected("v2/models/solo/infer", DATA),
    redirected("v2/models/none/infer", DATA),
    redirected("v2/health/live"),
    redirected("v2/repository/index"),
    redirected("v2/systemsharedmemory/status"),
    redirected("v2/trace/setting"),
    redirected("v2/logging"),
    redirected("metrics"),
    redirected("none"),
]
for port, target in (("sagemaker", "/invocations"), ("vertex-ai", "/predict")):
    ROWS += [
        Row(port, "POST", target, DATA),
        Row(port, "POST", target, DATA, content_type=""),
        Row(port, "POST", target, NEGATIVE),
        Row(port, "POST", target, b"{"),
        Row(port, "POST", target, b"{}"),
        binary(port, target),
        binary(port, target, len(HEADER) - 1),
        binary(port, target, 0),
        binary(port, target, 9999),
        # 2.51 reads it as 0; newer sources refuse it.
        binary(port, target, "x", differs=400),
        binary(port, target, prefix="x "),
    ]


class Response(NamedTuple):
    """document: of a body that is JSON."""

    status: int
    content_type: str
    header_length: str
    body: bytes

    @property
    def document(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(port: int, row: Row, others: Mapping[str, str]) -> Response:
    headers = dict(others)
    if row.content_type:
        headers["Content-Type"] = row.content_type
    if row.redirect:
        headers[REDIRECT] = row.redirect
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(row.method, row.target, row.body, headers)
        response = connection.getresponse()
        content_type, length = (response.headers[name] or "" for name in ("Content-Type", LENGTH))
        return Response(response.status, content_type, length, response.read())
    finally:
        connection.close()


class Ports(NamedTuple):
    """Triton's and Nereid's, by the platforms, and where archives are."""

    real: dict[str, int]
    ours: dict[str, int]
    archives: Path

    def ask(self, row: Row, **headers: str) -> tuple[Response, Response]:
        """Triton's response and Nereid's."""
        return ask(self.real[row.port], row, headers), ask(self.ours[row.port], row, headers)


def save_model(folder: Path, name: str) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copy(SOURCE, folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(f'name: "{name}"\n{CONFIG}')


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    root = tmp_path_factory.mktemp("managed")
    archives = root / "archives"
    archives.mkdir()
    for owner in ("triton", "nereid"):
        save_model(root / owner / "solo", "solo")
    servers = [{"sagemaker": free_port(), "vertex-ai": free_port()} for _ in range(2)]
    flags = [
        [
            *("--allow-sagemaker=true", f"--sagemaker-port={each['sagemaker']}"),
            *("--allow-vertex-ai=true", f"--vertex-ai-port={each['vertex-ai']}"),
            *("--vertex-ai-default-model=solo", "--model-control-mode=explicit"),
            "--load-model=solo",
        ]
        for each in servers
    ]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("AIP_PREDICT_ROUTE", "/predict")
        environ.setenv("AIP_HEALTH_ROUTE", "/health")
        environ.setenv("SAGEMAKER_MULTI_MODEL", "true")
        environ.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "solo")
        flags[1].append(f"--sagemaker-models-directory={archives}")
        with (
            skipping(),
            triton.running(root / "triton", root / "triton.log", *flags[0]),
            running(root / "nereid", root / "nereid.log", *flags[1]),
        ):
            yield Ports(servers[0], servers[1], archives)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_row(ports: Ports, row: Row) -> None:
    real, ours = ports.ask(row)
    assert ours.status == (real.status if row.differs is None else row.differs)
    if row.body in SAME and row.differs is None and real.status != 404:
        assert ours == real


def archive_of_a_model(folder: Path) -> None:
    save_model(folder / "inner", "inner")


def archive_of_an_ensemble(folder: Path) -> None:
    save_model(folder / "inner", "inner")
    (folder / "twice" / "1").mkdir(parents=True)
    (folder / "twice" / "config.pbtxt").write_text(ENSEMBLE)


@pytest.mark.parametrize("save", [archive_of_a_model, archive_of_an_ensemble])
def test_the_life_of_an_archive(ports: Ports, save: Callable[[Path], None]) -> None:
    key = save.__name__
    save(ports.archives / key / "model")
    url = str(ports.archives / key / "model")
    target_model = {"X-Amzn-SageMaker-Target-Model": f"{key}.tar.gz"}
    loading = load({"model_name": key, "url": url})
    story = [
        (loading, target_model, 200),
        (loading, target_model, 409),
        (Row("sagemaker", "GET", f"/models/{key}"), {}, 200),
        (Row("sagemaker", "POST", f"/models/{key}/invoke", DATA), target_model, 200),
        (Row("sagemaker", "POST", f"/models/{key}/invoke", NEGATIVE), target_model, 400),
        (binary("sagemaker", f"/models/{key}/invoke"), target_model, 200),
        (Row("sagemaker", "DELETE", f"/models/{key}"), target_model, 200),
        (Row("sagemaker", "DELETE", f"/models/{key}"), target_model, 404),
        (Row("sagemaker", "GET", f"/models/{key}"), {}, 404),
        (Row("sagemaker", "POST", f"/models/{key}/invoke", DATA), target_model, 404),
        (Row("sagemaker", "GET", "/models"), {}, 200),
    ]
    for row, headers, status in story:
        real, ours = ports.ask(row, **headers)
        assert (ours.status, real.status) == (status, status), (row, ours, real)
        if status == 200:
            assert ours.document == real.document
        if row.content_type.startswith("application/vnd"):
            # Of the JSON in front, members of an ensemble's parameters come in any order.
            assert ours.content_type == real.content_type
            assert ours.body.endswith(real.body[-len(TENSOR) :])
