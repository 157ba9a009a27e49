"""ModelStreamInfer through the whole mesh, with tritonclient."""

import queue
from typing import Any

import numpy as np
import tritonclient.grpc as tritongrpc

from tests.support.mesh.mesh import Mesh


def tensor(datatype: str, array: np.ndarray[Any, Any]) -> tritongrpc.InferInput:
    made = tritongrpc.InferInput("INPUT0", list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def test_responses_and_failures_in_the_order_of_requests(mesh: Mesh) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = tritongrpc.InferenceServerClient(mesh.grpc)
    client.start_stream(lambda result, error: got.put((result, error)))
    for number in range(100):
        client.async_stream_infer(
            "identity_fp32",
            [tensor("FP32", np.array([[number]], np.float32))],
            request_id=str(number),
        )
    # The first fails in its model, the second is never accepted.
    not_text = tensor("BYTES", np.array([[b"\xff"]], np.object_))
    client.async_stream_infer("upper", [not_text], request_id="fails")
    client.async_stream_infer("nope", [not_text], request_id="unknown")
    for number in range(100):
        result, error = got.get(timeout=20)
        assert error is None
        response = result.get_response()
        assert response.id == str(number)
        assert response.parameters["triton_final_response"].bool_param
        assert result.as_numpy("OUTPUT0").item() == number
    failed, unknown = got.get(timeout=20), got.get(timeout=20)
    client.stop_stream()
    client.close()
    assert "UTF-8" in failed[1].message()
    assert unknown[1].message() == "Request for unknown model: 'nope' is not found"


def test_a_models_failure_as_the_status_of_the_call(mesh: Mesh) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = tritongrpc.InferenceServerClient(mesh.grpc)
    client.start_stream(
        lambda result, error: got.put((result, error)), headers={"triton_grpc_error": "true"}
    )
    not_text = tensor("BYTES", np.array([[b"\xff"]], np.object_))
    client.async_stream_infer("nope", [not_text])
    client.async_stream_infer("upper", [not_text])
    unknown, failed = got.get(timeout=20), got.get(timeout=20)
    client.stop_stream(cancel_requests=True)
    client.close()
    assert unknown[1].status() is None
    assert failed[1].status() == "StatusCode.INVALID_ARGUMENT"
