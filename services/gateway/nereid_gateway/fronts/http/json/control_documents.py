"""Responses to control calls as JSON documents, in the form that Triton's HTTP clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.pb import kserve_pb2

    TensorMetadata = kserve_pb2.ModelMetadataResponse.TensorMetadata


def server_metadata(message: kserve_pb2.ServerMetadataResponse) -> bytes:
    """Return the JSON document for a server's metadata."""
    return orjson.dumps(
        {
            "name": message.name,
            "version": message.version,
            "extensions": list(message.extensions),
        }
    )


def model_metadata(message: kserve_pb2.ModelMetadataResponse) -> bytes:
    """Return the JSON document for a model's metadata."""
    return orjson.dumps(
        {
            "name": message.name,
            "versions": list(message.versions),
            "platform": message.platform,
            "inputs": _tensors(message.inputs),
            "outputs": _tensors(message.outputs),
        }
    )


def _tensors(tensors: Iterable[TensorMetadata]) -> list[dict[str, Any]]:
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in tensors
    ]


def repository_index(message: kserve_pb2.RepositoryIndexResponse) -> bytes:
    """Return the JSON list for an index. A model that was never loaded has only its name."""
    models = []
    for model in message.models:
        document = {"name": model.name}
        for field in ("version", "state", "reason"):
            value = getattr(model, field)
            if value:
                document[field] = value
        models.append(document)
    return orjson.dumps(models)


def _duration(message: kserve_pb2.StatisticDuration) -> dict[str, int]:
    return {"count": message.count, "ns": message.ns}


def _durations(message: Any, *fields: str) -> dict[str, dict[str, int]]:
    return {field: _duration(getattr(message, field)) for field in fields}


_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def model_statistics(message: kserve_pb2.ModelStatisticsResponse) -> bytes:
    """Return the JSON document for the statistics of models."""
    return orjson.dumps({"model_stats": [_statistics(model) for model in message.model_stats]})


def _statistics(message: kserve_pb2.ModelStatistics) -> dict[str, Any]:
    return {
        "name": message.name,
        "version": message.version,
        "last_inference": message.last_inference,
        "inference_count": message.inference_count,
        "execution_count": message.execution_count,
        "inference_stats": _durations(
            message.inference_stats,
            "success",
            "fail",
            "queue",
            *_COMPUTE,
            "cache_hit",
            "cache_miss",
        ),
        "response_stats": {
            key: _durations(
                value,
                "compute_infer",
                "compute_output",
                "success",
                "fail",
                "empty_response",
                "cancel",
            )
            for key, value in sorted(message.response_stats.items())
        },
        "batch_stats": [
            {"batch_size": batches.batch_size, **_durations(batches, *_COMPUTE)}
            for batches in message.batch_stats
        ],
        "memory_usage": [
            {"type": usage.type, "id": usage.id, "byte_size": usage.byte_size}
            for usage in message.memory_usage
        ],
    }
