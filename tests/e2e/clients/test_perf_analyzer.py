"""perf_analyzer drives the mesh with more and more requests at a time."""

from itertools import product
from pathlib import Path

import pytest

from tests.support.mesh.mesh import Mesh
from tests.support.mesh.perf_analyzer import COUNTED, measured, needs_analyzer

pytestmark = [pytest.mark.slow, needs_analyzer]

GRPC_MODES = ["--sync", "--async", "--async --streaming"]


@pytest.mark.parametrize(
    ("mesh", "protocol", "mode", "concurrency"),
    [
        *product(["nereid"], ["http"], ["--sync", "--async"], [16]),
        *product(["nereid"], ["grpc"], GRPC_MODES, [16]),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (
                *product(["nereid"], ["http"], ["--sync", "--async"], [1, 64]),
                *product(["nereid"], ["grpc"], GRPC_MODES, [1, 64]),
                # HTTP does not depend on the gRPC engine.
                *product(["grpcio"], ["grpc"], GRPC_MODES, [16]),
            )
        ),
    ],
    indirect=["mesh"],
)
def test_it_measures(
    mesh: Mesh, tmp_path: Path, protocol: str, mode: str, concurrency: int
) -> None:
    flags = [*mode.split(), f"--concurrency-range={concurrency}", *COUNTED]
    measured(mesh, protocol, "doubler", tmp_path / "report.csv", *flags)
