"""ResNet-50: images of 224 x 224 pixels, with 588 KiB per request and 4.1 GFLOP per image.

The expected response comes from onnxruntime, one image at a time: NumPy would take minutes.
"""

from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks import resnet50
from benchmarks.models.workload import Workload, write_onnx

_CONFIG = f"""\
name: "{resnet50.NAME}"
backend: "{{backend}}"
max_batch_size: {resnet50.MAX_BATCH_SIZE}
input [ {{{{ name: "{resnet50.INPUT}" data_type: TYPE_FP32 dims: {list(resnet50.SHAPE)} }}}} ]
output [ {{{{ name: "{resnet50.OUTPUT}" data_type: TYPE_FP32 dims: [ {resnet50.CLASSES} ] }}}} ]
instance_group [ {{{{ kind: KIND_CPU count: 1 }}}} ]
dynamic_batching {{{{ }}}}
parameters {{{{ key: "intra_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
parameters {{{{ key: "inter_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
"""


def workload(cache: Path) -> Workload:
    """Return the workload."""
    graph = resnet50.write_file(cache / resnet50.NAME / "model.onnx")

    def write(repository: Path, backend: str) -> None:
        write_onnx(repository, resnet50.NAME, graph, _CONFIG, backend)

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    images = resnet50.example(3)
    rows = [session.run(None, {resnet50.INPUT: image[np.newaxis]})[0] for image in images]
    return Workload(
        name=resnet50.NAME,
        served=resnet50.NAME,
        inputs={resnet50.INPUT: images},
        expected={resnet50.OUTPUT: np.concatenate(rows)},
        write=write,
        graph=graph,
        batched=resnet50.NAME,
        max_batch_size=resnet50.MAX_BATCH_SIZE,
        tolerance=1e-3,
        concurrency=(1, 4, 8),
        batches=(1, 2, 4, 8),
        seconds=3,
        warm_s=2,
    )
