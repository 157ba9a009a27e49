"""Responses that the benchmarks accept as right.

Kept as a test of an oracle: a check that accepts anything lets every benchmark pass.
"""

from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from benchmarks import wire
from benchmarks.failure import BenchError
from benchmarks.models import decoupled, ensemble, mlp
from benchmarks.models.workload import Workload

MAKERS = {
    "mlp": mlp.workload,
    "python": mlp.python_workload,
    "ensemble": ensemble.workload,
    "decoupled": decoupled.workload,
}


@pytest.fixture(params=MAKERS)
def workload(request: pytest.FixtureRequest, tmp_path: Path) -> Workload:
    return MAKERS[request.param](tmp_path / "cache")


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "contents"])
def test_responses_are_checked(workload: Workload, raw: bool) -> None:
    ((name, array),) = workload.response().items()

    def response(values: np.ndarray) -> bytes:
        made = service_pb2.ModelInferResponse()
        output = made.outputs.add(name=name, datatype="FP32", shape=values.shape)
        if raw:
            made.raw_output_contents.append(values.tobytes())
        else:
            output.contents.fp32_contents.extend(values.ravel())
        return bytes(made.SerializeToString())

    wire.require_grpc_response(workload, response(array))
    for wrong in (array + np.float32(0.01), array[..., :-1]):
        with pytest.raises(BenchError, match=f"a wrong response: {name}"):
            wire.require_grpc_response(workload, response(wrong))
    with pytest.raises(BenchError, match="None"):
        wire.require_grpc_response(workload, b"")
