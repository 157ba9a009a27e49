"""Instances of models, and batches executed by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format

from nereid.backends import InstanceSpec
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.array_adapter import ArrayAdapter
from nereid_executor.batch.runner import Runner


def instance(
    written: str | model_config_pb2.ModelConfig, path: Path = Path("1"), **fields: Any
) -> InstanceSpec:
    """Return the spec of an instance of model "m", whose version is at `path`."""
    made = written
    if isinstance(made, str):
        made = text_format.Parse(f'name: "m" {made}', model_config_pb2.ModelConfig())
    return InstanceSpec(
        **{"config": made, "version": 1, "version_path": path, "name": "m_0", **fields}
    )


def adapter_of(runner: Runner) -> ArrayAdapter:
    """Return the adapter of a runner for a model of arrays."""
    assert isinstance(runner.adapter, ArrayAdapter)
    return runner.adapter


def execute(runner: Runner, *members: pb.BatchMember) -> pb.Executed:
    """Execute a batch up to its last response."""
    batch = pb.Batch(id=runner.received.last_read + 1, members=members)
    sent: list[bytes] = []
    runner.on_frame(batch.SerializeToString(), sent.append)
    while runner.received.busy:
        runner.collect(runner.adapter.wait_for_model(), sent.append)
    return pb.Executed.FromString(b"".join(sent))


def responses(runner: Runner, *members: pb.BatchMember) -> list[pb.InferResponse]:
    """Execute a batch, and return the responses to its members."""
    return list(execute(runner, *members).responses)
