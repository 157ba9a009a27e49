"""nghttp2's h2load: gRPC requests over 100 connections, each of them counted."""

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.support.mesh.mesh import Mesh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("h2load"), reason="h2load (nghttp2-client) is missing"),
]


def successes(mesh: Mesh) -> int:
    _, body = mesh.get("/v2/models/doubler/stats")
    return int(json.loads(body)["model_stats"][0]["inference_stats"]["success"]["count"])


# The fall-back engine is not built for load.
@pytest.mark.parametrize("mesh", ["nereid"], indirect=True)
@pytest.mark.parametrize("requests", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_every_request_gets_its_response(mesh: Mesh, tmp_path: Path, requests: int) -> None:
    request = service_pb2.ModelInferRequest(model_name="doubler")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 8])
    request.raw_input_contents.append(np.ones((1, 8), np.float32).tobytes())
    message = request.SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    before = successes(mesh)
    url = f"http://{mesh.grpc}/inference.GRPCInferenceService/ModelInfer"
    command = ["h2load", f"-n{requests}", "-c100", "-m4", "-d", str(body), url]
    command += ["-Hcontent-type: application/grpc", "-Hte: trailers"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", result.stdout)
    assert counts, result.stdout
    assert [int(n) for n in counts.groups()] == [requests, 0, 0], result.stdout
    # h2load sees only the HTTP status; the statistics report what was computed.
    assert successes(mesh) - before == requests
