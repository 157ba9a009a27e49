"""CUDA's calls and host buffers; some tests need a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from nereid.core.errors import Internal

cuda = pytest.importorskip("cuda.bindings.runtime", reason="CUDA's bindings are not installed")
cuda_memory = pytest.importorskip("nereid.services.executor.backends.tensorrt.cuda_memory")

HAS_GPU = cuda.cudaGetDeviceCount()[0] == cuda.cudaError_t.cudaSuccess


@pytest.mark.skipif(HAS_GPU, reason="CUDA works here")
def test_a_failed_call_is_an_error_with_cudas_text() -> None:
    with pytest.raises(Internal, match=r"CUDA error \d+: \w+"):
        cuda_memory.set_device(0)


def test_a_call_returns_its_value() -> None:
    fine = cuda.cudaError_t.cudaSuccess
    assert cuda_memory.check_cuda((fine, 3)) == 3
    assert cuda_memory.check_cuda((fine, 1, 2)) == [1, 2]
    assert cuda_memory.check_cuda((fine,)) == []


def test_a_host_buffer_is_viewed_as_arrays_of_any_type() -> None:
    buffer = cuda_memory.HostBuffer(12, pinned=False)
    buffer.view((3,), np.dtype("<f4"))[...] = [1, 2, 3]
    assert buffer.view((1, 2), np.dtype("<f4")).tolist() == [[1.0, 2.0]]
    assert buffer.view((0, 2), np.dtype("<f4")).shape == (0, 2)
    assert buffer.view((2,), np.dtype("<i4")).ctypes.data == buffer.address
    buffer.close()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="CUDA does not work here")
def test_bytes_go_to_the_gpu_and_back() -> None:
    cuda_memory.set_device(0)
    stream = cuda_memory.Stream()
    device = cuda_memory.DeviceMemory(12)
    buffer = cuda_memory.HostBuffer(12, pinned=True)
    array = buffer.view((3,), np.dtype("<f4"))
    array[...] = [1, 2, 3]
    stream.copy_to_device(device.address, buffer.address, 12)
    stream.synchronize()
    array[...] = 0
    graph = stream.capture_graph(lambda: stream.copy_to_host(buffer.address, device.address, 12))
    stream.launch_graph(graph)
    stream.synchronize()
    assert array.tolist() == [1, 2, 3]
    for each in (graph, buffer, device, stream):
        each.close()
