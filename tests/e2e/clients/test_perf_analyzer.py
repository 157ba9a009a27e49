"""perf_analyzer: how it feeds, how fast, how it asks, what it reads of the metrics page."""

import json
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest

from tests.support.mesh.mesh import Mesh
from tests.support.mesh.nvidia_clients import MARKED_PROTOCOLS, PROTOCOLS
from tests.support.mesh.perf_analyzer import WINDOWS, analyze, measured, needs_analyzer

pytestmark = [pytest.mark.slow, needs_analyzer]

_EIGHT = [float(number) for number in range(8)]
_INPUTS = [
    {"INPUT0": _EIGHT},
    {"INPUT0": {"content": _EIGHT, "shape": [8]}},
    # 1.0 eight times.
    {"INPUT0": {"b64": "AACAPwAAgD8AAIA/AACAPwAAgD8AAIA/AACAPwAAgD8="}},
]
_TEXTS = [{"INPUT0": {"content": ["é", "", "long" * 50], "shape": [3]}}]
# Ends by itself after a second.
_ONCE = "--request-count=60 "
_WINDOWS = " ".join(WINDOWS) + " "
_BOTH, _HTTP, _GRPC = ("http", "grpc"), ("http",), ("grpc",)
_STREAM = "--async --streaming "
# Protocols, model, flags; {} is a folder of the test's.
MODES = {
    "synchronous": (_BOTH, "doubler", _WINDOWS + "--sync --concurrency-range=16"),
    "asynchronous": (_BOTH, "doubler", _WINDOWS + "--async --concurrency-range=16"),
    "streams": (_GRPC, "doubler", _WINDOWS + _STREAM + "--concurrency-range=16"),
    "values": (_BOTH, "doubler", _ONCE + "--input-data={}/inputs.json"),
    "texts": (_BOTH, "identity_bytes", _ONCE + "--input-data={}/texts.json"),
    "a folder": (_BOTH, "doubler", _ONCE + "--input-data={}/folder"),
    "zeros": (_GRPC, "doubler", _ONCE + "--input-data=zero"),
    "random texts": (
        *(_BOTH, "identity_bytes"),
        _ONCE + "--shape=INPUT0:4 --string-length=20 --concurrency-range=4",
    ),
    "a shape": (_GRPC, "identity_fp32", _ONCE + "--shape=INPUT0:1000"),
    "JSON tensors": (
        *(_HTTP, "doubler"),
        _ONCE + "--input-tensor-format=json --output-tensor-format=json",
    ),
    "parameters": (_GRPC, "doubler", _ONCE + "--request-parameter=mine:1:int -H x-any:thing"),
    "compression": (_GRPC, "doubler", _ONCE + "--grpc-compression-algorithm=gzip"),
    "request rates": (
        *(_GRPC, "doubler"),
        _WINDOWS + "--request-rate-range=100:200:100 --request-distribution=poisson",
    ),
    "a rate on streams": (_GRPC, "doubler", _WINDOWS + _STREAM + "--request-rate-range=100"),
    "a search": (_HTTP, "doubler", _WINDOWS + "--concurrency-range=1:2 --binary-search -l 9000"),
    "count windows": (
        *(_GRPC, "doubler"),
        _WINDOWS + "--measurement-mode=count_windows --measurement-request-count=50",
    ),
    "a percentile": (_HTTP, "doubler", _WINDOWS + "--percentile=95"),
    "periodic concurrency": (
        *(_GRPC, "doubler"),
        _STREAM + "--periodic-concurrency-range=1:7:2 --request-period=1"
        " --profile-export-file={}/profile.json",
    ),
}
ROWS = [
    pytest.param(
        *(engine, protocol, model, flags),
        id=f"{name}-{protocol}-{engine}",
        marks=[pytest.mark.nightly] if engine == "grpcio" else [],
    )
    for name, (protocols, model, flags) in MODES.items()
    for engine, protocol in PROTOCOLS
    if protocol in protocols
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inputs.json").write_text(json.dumps({"data": _INPUTS}))
    (tmp_path / "texts.json").write_text(json.dumps({"data": _TEXTS}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "INPUT0").write_bytes(np.array(_EIGHT, np.float32).tobytes())
    return tmp_path


def counts(mesh: Mesh, model: str) -> tuple[int, int, int]:
    """Successes, failures and inferences so far."""
    status, body = mesh.get(f"/v2/models/{model}/stats")
    assert status == HTTPStatus.OK
    (stats,) = json.loads(body)["model_stats"]
    reported = stats["inference_stats"]
    return reported["success"]["count"], reported["fail"]["count"], stats["inference_count"]


@pytest.mark.parametrize(("mesh", "protocol", "model", "flags"), ROWS, indirect=["mesh"])
def test_it_measures_without_a_failure(
    mesh: Mesh, folder: Path, protocol: str, model: str, flags: str
) -> None:
    before = counts(mesh, model)
    analyze(mesh, protocol, model, *flags.format(folder).split())
    requests, failures, _ = (b - a for a, b in zip(before, counts(mesh, model), strict=True))
    assert requests > 0
    assert failures == 0
    if flags.startswith(_ONCE):
        assert requests >= 60


@pytest.mark.parametrize(("mesh", "protocol"), MARKED_PROTOCOLS, indirect=["mesh"])
def test_batches_reach_the_model(mesh: Mesh, protocol: str) -> None:
    before = counts(mesh, "doubler")
    analyze(mesh, protocol, "doubler", "-b", "8", _ONCE.strip())
    after = counts(mesh, "doubler")
    requests, failures, inferences = (b - a for a, b in zip(before, after, strict=True))
    assert (failures, inferences) == (0, 8 * requests)


@pytest.mark.parametrize("mesh", ["nereid"], indirect=True)
def test_it_reads_the_metrics_page(mesh: Mesh, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{mesh.metrics_port}/metrics"
    flags = f"--collect-metrics --metrics-url={url} --metrics-interval=1000 {_WINDOWS}".split()
    measured(mesh, "grpc", "doubler", tmp_path / "report.csv", *flags, "--verbose-csv")
