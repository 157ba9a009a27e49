"""ResNet-50, alone and in an ensemble that turns the bytes of an image into class names.

The first step of the ensemble is an ONNX model that converts the bytes to numbers. The
classification extension gets the names of the classes from the label file.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from benchmarks import resnet50
from benchmarks.peers import native
from benchmarks.real_models import subject
from benchmarks.real_models.subject import Run

_CLASSES = 3
_STEP = "preprocess"
_PIXELS = (224, 224, 3)
_RESNET = f"""\
name: "{resnet50.NAME}"
backend: "onnxruntime"
max_batch_size: {resnet50.MAX_BATCH_SIZE}
input {{ name: "{resnet50.INPUT}" data_type: TYPE_FP32 dims: {[*resnet50.SHAPE]} }}
output {{
  name: "{resnet50.OUTPUT}" data_type: TYPE_FP32 dims: [ {resnet50.CLASSES} ]
  label_filename: "labels.txt"
}}
dynamic_batching {{ }}
"""
_PREPROCESS = f"""\
name: "{_STEP}"
backend: "onnxruntime"
max_batch_size: {resnet50.MAX_BATCH_SIZE}
input {{ name: "pixels" data_type: TYPE_UINT8 dims: {[*_PIXELS]} }}
output {{ name: "numbers" data_type: TYPE_FP32 dims: {[*resnet50.SHAPE]} }}
dynamic_batching {{ }}
"""
_ENSEMBLE = f"""\
name: "%s"
platform: "ensemble"
max_batch_size: {resnet50.MAX_BATCH_SIZE}
input {{ name: "pixels" data_type: TYPE_UINT8 dims: {[*_PIXELS]} }}
output {{
  name: "{resnet50.OUTPUT}" data_type: TYPE_FP32 dims: [ {resnet50.CLASSES} ]
  label_filename: "labels.txt"
}}
ensemble_scheduling {{ step [
  {{ model_name: "{_STEP}" model_version: -1
    input_map {{ key: "pixels" value: "pixels" }}
    output_map {{ key: "numbers" value: "numbers" }} }},
  {{ model_name: "{resnet50.NAME}" model_version: -1
    input_map {{ key: "{resnet50.INPUT}" value: "numbers" }}
    output_map {{ key: "{resnet50.OUTPUT}" value: "{resnet50.OUTPUT}" }} }}
] }}
"""


@dataclass(frozen=True)
class Images:
    """Subject with images; `file`: ResNet-50's file. `step`: file of the ensemble's first step."""

    name: str
    file: Path
    step: Path | None = None

    batched = resnet50.NAME
    peers = (native.NAME,)

    def write(self, repository: Path, peer: str) -> None:  # noqa: ARG002 - the same for each
        """Write the repository."""
        self._write_model(repository, resnet50.NAME, _RESNET, self.file)
        if self.step is not None:
            self._write_model(repository, _STEP, _PREPROCESS, self.step)
            folder = repository / self.name
            (folder / "1").mkdir(parents=True)
            (folder / "config.pbtxt").write_text(_ENSEMBLE % self.name)
            _write_labels(folder)

    def requests(self, client: int) -> Iterator[bytes]:
        """Yield a client's requests."""
        if self.step is None:
            feed = {resnet50.INPUT: resnet50.example()}
            output = subject.binary_output(resnet50.OUTPUT)
        else:
            feed = {"pixels": _image(client)}
            output = subject.binary_output(resnet50.OUTPUT, classification=_CLASSES)
        return repeat(subject.http_request(self.name, feed, [output]))

    def open_bare(self, threads: int) -> Callable[[int], Run]:
        """Return the loop for a batch size."""
        session = subject.open_session(self.file, threads)
        step = None if self.step is None else subject.open_session(self.step, threads)

        def run_batches(batch_size: int) -> Run:
            if step is None:
                feed = {resnet50.INPUT: np.repeat(resnet50.example(), batch_size, 0)}

                def run() -> int:
                    session.run([resnet50.OUTPUT], feed)
                    return batch_size

                return run
            pixels = {"pixels": np.repeat(_image(0), batch_size, 0)}
            labels = _labels()

            def run_steps() -> int:
                numbers = step.run(["numbers"], pixels)[0]
                logits = session.run([resnet50.OUTPUT], {resnet50.INPUT: numbers})[0]
                for row in logits:
                    best = np.argpartition(row, -_CLASSES)[-_CLASSES:]
                    _ = [f"{row[place]:f}:{place}:{labels[place]}" for place in best]
                return batch_size

            return run_steps

        return run_batches

    @staticmethod
    def _write_model(repository: Path, name: str, config: str, file: Path) -> None:
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        shutil.copy(file, folder / "1" / "model.onnx")
        subject.write_config(folder, config)
        _write_labels(folder)


def _labels() -> list[str]:
    return [f"class {number}" for number in range(resnet50.CLASSES)]


def _write_labels(folder: Path) -> None:
    (folder / "labels.txt").write_text("\n".join(_labels()) + "\n")


def _image(seed: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 256, (1, *_PIXELS), np.uint8)


def _preprocessing() -> bytes:
    """Return a model that makes numbers about 0 of colours' bytes, a plane for each colour."""
    mean = np.array([123.675, 116.28, 103.53], np.float32)
    scale = 1 / np.array([58.395, 57.12, 57.375], np.float32)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["cast", "mean"], ["centred"]),
        helper.make_node("Mul", ["centred", "scale"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["numbers"], perm=[0, 3, 1, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        _STEP,
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", *_PIXELS])],
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", *resnet50.SHAPE])],
        [numpy_helper.from_array(mean, "mean"), numpy_helper.from_array(scale, "scale")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def subjects(models: Path) -> list[Images]:
    """Return the subjects of this module."""
    file = resnet50.write_file(models / "resnet50-seeded" / "model.onnx")
    step = models / "resnet50-seeded" / "preprocess.onnx"
    step.write_bytes(_preprocessing())
    return [Images(resnet50.NAME, file), Images("ensemble", file, step)]
