"""CUDA's calls and staging memory; some tests need a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from nereid.core.errors import Internal

cuda = pytest.importorskip("cuda.bindings.runtime", reason="CUDA's bindings are not installed")
cuda_memory = pytest.importorskip("nereid.services.executor.backends.tensorrt.cuda_memory")

HAS_GPU = cuda.cudaGetDeviceCount()[0] == cuda.cudaError_t.cudaSuccess


@pytest.mark.skipif(HAS_GPU, reason="CUDA works here")
def test_a_failed_call_is_an_error_with_cudas_words() -> None:
    with pytest.raises(Internal, match=r"CUDA error \d+: \w+"):
        cuda_memory.choose_device(0)


def test_a_call_gives_its_value() -> None:
    fine = cuda.cudaError_t.cudaSuccess
    assert cuda_memory.done((fine, 3)) == 3
    assert cuda_memory.done((fine, 1, 2)) == [1, 2]
    assert cuda_memory.done((fine,)) == []


def test_staging_is_seen_as_arrays_of_any_kind() -> None:
    staging = cuda_memory.Staging(12, pinned=False)
    staging.view((3,), np.dtype("<f4"))[...] = [1, 2, 3]
    assert staging.view((1, 2), np.dtype("<f4")).tolist() == [[1.0, 2.0]]
    assert staging.view((0, 2), np.dtype("<f4")).shape == (0, 2)
    assert staging.view((2,), np.dtype("<i4")).ctypes.data == staging.address
    staging.close()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="CUDA does not work here")
def test_bytes_go_to_the_gpu_and_back() -> None:
    cuda_memory.choose_device(0)
    stream = cuda_memory.Stream()
    there = cuda_memory.DeviceMemory(12)
    staging = cuda_memory.Staging(12, pinned=True)
    array = staging.view((3,), np.dtype("<f4"))
    array[...] = [1, 2, 3]
    stream.copy_in(there.address, staging.address, 12)
    stream.wait()
    array[...] = 0
    graph = stream.capture(lambda: stream.copy_out(staging.address, there.address, 12))
    stream.launch(graph)
    stream.wait()
    assert array.tolist() == [1, 2, 3]
    for each in (graph, staging, there, stream):
        each.close()
