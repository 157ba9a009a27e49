"""TensorRT engines are built and executed on GPUs only, as are these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.backends import InstanceSpec
from nereid.backends.device_io.cuda_device import CudaDevice
from nereid.core.errors import InvalidArgument, Unavailable, Unimplemented
from tests.support.executor.instances import instance

trt = pytest.importorskip("tensorrt", reason="TensorRT is not installed")
try:
    CudaDevice(0)
except Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)
tensorrt = pytest.importorskip("nereid_tensorrt.backend")

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TENSORS = """
    input { name: "x" data_type: TYPE_FP32 dims: 4 }
    output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x + x, for 1 to 8 rows (optimal 1) and for 1 to 16 (optimal 16)."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4))
    y = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)
    settings = builder.create_builder_config()
    for optimal, largest in ((1, 8), (16, 16)):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (1, 4), (optimal, 4), (largest, 4))
        settings.add_optimization_profile(profile)
    directory = tmp_path_factory.mktemp("model") / "1"
    directory.mkdir()
    (directory / "model.plan").write_bytes(builder.build_serialized_network(network, settings))
    return directory


def spec(path: Path, text: str, tensors: str = TENSORS) -> InstanceSpec:
    written = f'backend: "tensorrt" platform: "tensorrt_plan" {text} {tensors}'
    return instance(written, path, name="m_0_0", gpu=0)


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "optimization { input_pinned_memory { enable: true } }",
        "optimization { output_pinned_memory { enable: true } }",
        "optimization { cuda { graphs: true busy_wait_events: true } priority: PRIORITY_MAX }",
        """optimization { cuda { graphs: true graph_spec {
            batch_size: 8 graph_lower_bound { batch_size: 1 } } } }""",
        'instance_group { profile: [ "0", "1" ] kind: KIND_GPU }',
    ],
)
def test_batches_of_all_sizes(path: Path, text: str) -> None:
    model = tensorrt.load(spec(path, f"max_batch_size: 8 {text}"))
    for count in (1, 8, 3, 1, 8):
        array = rows(count)
        array.flags.writeable = False
        (out,) = model.execute({"x": array}, ["y"])
        assert out.tolist() == (2 * array).tolist()
    model.close()


def test_more_rows_than_the_profiles_allow_are_refused(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="for 'm_0_0', model maximum is 8"):
        tensorrt.load(spec(path, "max_batch_size: 9"))


def test_engines_for_several_gpus_are_refused(path: Path) -> None:
    one = spec(path, "max_batch_size: 8")
    one.config.parameters["enable_multi_device"].string_value = "true"
    with pytest.raises(Unimplemented, match="enable_multi_device"):
        tensorrt.load(one)


def test_the_engine_completes_the_configuration(path: Path) -> None:
    described = tensorrt.describe(spec(path, "", "").config, path)
    assert described.config.max_batch_size == 8
    assert described.config.input[0].dims == [4]
