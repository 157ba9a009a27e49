"""The model of the mock server, which has any name that a client asks for, and its responses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format

from nereid.pb import kserve_pb2 as pb
from nereid.pb import model_config_pb2

EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "sequence",
    "statistics",
    "system_shared_memory",
)
FAILURE: Final = "the mock server was told to fail"
_FP32_BYTES: Final = 4


@dataclass
class Counts:
    """Counters and sums of times since the server started."""

    requests: int = 0
    queue_ns: int = 0
    compute_ns: int = 0


@dataclass
class MockModel:
    """A model with one FP32 input and one FP32 output; `responses` is per request."""

    size: int = 8
    responses: int = 1
    has_sequences: bool = False
    counts: Counts = field(default_factory=Counts)

    def count(self, arrived_ns: int, started_ns: int, ended_ns: int) -> None:
        """Count a request; its times of arrival, start and end are in ns."""
        self.counts.requests += 1
        self.counts.queue_ns += started_ns - arrived_ns
        self.counts.compute_ns += ended_ns - started_ns

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata document."""

        def tensor(name: str) -> dict[str, Any]:
            return {"name": name, "datatype": "FP32", "shape": [self.size]}

        return {
            "name": name,
            "versions": ["1"],
            "platform": "mock",
            "inputs": [tensor("INPUT0")],
            "outputs": [tensor("OUTPUT0")],
        }

    def config(self, name: str) -> dict[str, Any]:
        """Return the configuration document."""

        def tensor(name: str) -> dict[str, Any]:
            return {"name": name, "data_type": "TYPE_FP32", "dims": [self.size]}

        config: dict[str, Any] = {
            "name": name,
            "backend": "mock",
            "max_batch_size": 0,
            "input": [tensor("INPUT0")],
            "output": [tensor("OUTPUT0")],
            "model_transaction_policy": {"decoupled": self.responses != 1},
        }
        if self.has_sequences:
            config["sequence_batching"] = {"oldest": {}}
        return config

    def statistics(self, name: str) -> dict[str, Any]:
        """Return the statistics document."""
        counts = self.counts

        def duration(total_ns: int) -> dict[str, int]:
            return {"count": counts.requests, "ns": total_ns}

        return {
            "name": name,
            "version": "1",
            "inference_count": counts.requests,
            "execution_count": counts.requests,
            "inference_stats": {
                "success": duration(counts.queue_ns + counts.compute_ns),
                "queue": duration(counts.queue_ns),
                "compute_input": duration(0),
                "compute_infer": duration(counts.compute_ns),
                "compute_output": duration(0),
            },
        }

    def http_response(self, request_id: str = "") -> bytes:
        """Return a whole HTTP response, head included; without an id, it is always the same."""
        content = bytes(_FP32_BYTES * self.size)
        output = {
            "name": "OUTPUT0",
            "datatype": "FP32",
            "shape": [self.size],
            "parameters": {"binary_data_size": len(content)},
        }
        named = {"id": request_id} if request_id else {}
        document = json.dumps(
            named | {"model_name": "mock", "model_version": "1", "outputs": [output]}
        )
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            f"Inference-Header-Content-Length: {len(document)}\r\n"
            f"Content-Length: {len(document) + len(content)}\r\n\r\n"
        )
        return (head + document).encode() + content

    def grpc_response(self) -> pb.ModelInferResponse:
        """Return the gRPC response, without an id."""
        response = pb.ModelInferResponse(model_name="mock", model_version="1")
        response.outputs.add(name="OUTPUT0", datatype="FP32", shape=[self.size])
        response.raw_output_contents.append(bytes(_FP32_BYTES * self.size))
        return response


def metadata_message(document: dict[str, Any]) -> pb.ModelMetadataResponse:
    """Return the metadata as a gRPC message."""
    return json_format.ParseDict(document, pb.ModelMetadataResponse())


def config_message(document: dict[str, Any]) -> pb.ModelConfigResponse:
    """Return the configuration as a gRPC message."""
    config = json_format.ParseDict(document, model_config_pb2.ModelConfig())
    return pb.ModelConfigResponse(config=config)


def statistics_message(document: dict[str, Any]) -> pb.ModelStatisticsResponse:
    """Return the statistics as a gRPC message."""
    return json_format.ParseDict({"model_stats": [document]}, pb.ModelStatisticsResponse())
