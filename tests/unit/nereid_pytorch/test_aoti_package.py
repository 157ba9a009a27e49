"""Packages of AOTInductor. They are compiled, which takes a C++ compiler as well as PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nereid.backends import InstanceSpec
from nereid.core.errors import Internal, InvalidArgument, Unimplemented
from tests.support.executor.instances import instance
from tests.support.models.torch_models import save_package

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytorch = pytest.importorskip("nereid_pytorch.backend")
load_package = pytest.importorskip("nereid_pytorch.aoti_package").load_package

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
    # PyTorch's compiler uses what PyTorch deprecates.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning"),
]

INPUTS = ("ARGS[0]", "ARGS[1][b]", "KWARGS[scale]")
RESULTS = ("RESULT[sums][1]", "RESULT[difference]", "RESULT[sums][0]")
A, B, SCALE = (np.full((2, 1), number, np.float32) for number in (5, 2, 3))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_package(tmp_path_factory.mktemp("package") / "1")


def spec(
    path: Path,
    inputs: Sequence[str] = INPUTS,
    outputs: Sequence[str] = RESULTS,
    datatype: str = "FP32",
) -> InstanceSpec:
    tensor = f"data_type: TYPE_{datatype} dims: 1"
    text = 'backend: "pytorch" platform: "torch_aoti" max_batch_size: 8'
    text += "".join(f' input {{ name: "{name}" {tensor} }}' for name in inputs)
    text += "".join(f' output {{ name: "{name}" {tensor} }}' for name in outputs)
    return instance(text, path)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (INPUTS, RESULTS, [8, -1, 7]),
        (("INPUT__0", "INPUT__1", "INPUT__2"), ("OUTPUT__2", "OUTPUT__0", "OUTPUT__1"), [8, -1, 7]),
        (("a", "b", "c"), ("x", "y", "z"), [-1, 7, 8]),
    ],
)
def test_tensors_find_their_places(
    package: Path, inputs: Sequence[str], outputs: Sequence[str], expected: list[int]
) -> None:
    model = pytorch.load(spec(package, inputs, outputs))
    made = model.execute(dict(zip(inputs, (A, B, SCALE), strict=True)), outputs)
    assert [array.tolist() for array in made] == [[[float(each)]] * 2 for each in expected]
    # The batch dimension is dynamic.
    wide = [np.full((5, 1), number, np.float32) for number in (5, 2, 3)]
    made = model.execute(dict(zip(inputs, wide, strict=True)), outputs[:1])
    assert made[0].tolist() == [[float(expected[0])]] * 5


@pytest.mark.parametrize(
    ("inputs", "datatype", "text"),
    [
        (INPUTS[:2], "FP32", "none is for KWARGS"),
        ((*INPUTS[:2], "scale"), "STRING", "have no strings"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    package: Path, inputs: Sequence[str], datatype: str, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        pytorch.load(spec(package, inputs, datatype=datatype))


def test_tensors_of_other_shapes_are_refused(package: Path) -> None:
    model = pytorch.load(spec(package))
    wide = np.zeros((2, 3), np.float32)
    with pytest.raises(Internal):
        model.execute(dict.fromkeys(INPUTS, wide), RESULTS)
    with pytest.raises(Internal):
        model.execute(dict.fromkeys(INPUTS, A.astype(np.float64)), RESULTS)


def test_a_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"none")
    with pytest.raises(Internal, match="failed to load"):
        pytorch.load(spec(tmp_path))


def test_an_older_torch_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._inductor, "aoti_load_package")
    with pytest.raises(Unimplemented, match=r"needs torch 2\.6 or newer"):
        pytorch.load(spec(package))


def test_a_package_for_another_kind_of_device_is_refused(package: Path) -> None:
    with pytest.raises(InvalidArgument, match="compiled for cpu, the instance is on meta"):
        load_package("m", package / "model.pt2", torch.device("meta"))
