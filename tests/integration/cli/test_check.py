"""`nereid check` on repositories of real model files: what it says is what loading says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nereid_mesh.check import command
from tests.support.models import native_models
from tests.support.models.e2e_models import make_repository

pytestmark = pytest.mark.slow

_PYTHON = 'backend: "python" max_batch_size: 4 dynamic_batching { }'
_TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    add(root, "complete", _PYTHON + _TENSORS, "class TritonPythonModel:\n  pass\n")
    # Not run: it would end the process.
    source = "import os\nos._exit(9)\nclass TritonPythonModel:\n  def auto_complete_config(c): 1\n"
    add(root, "completing", _PYTHON, source)
    add(root, "on_gpu", _PYTHON + _TENSORS + "instance_group { kind: KIND_GPU }", source)
    add(root, "faulty", _PYTHON + _TENSORS, "class TritonPythonModel(:\n")
    add(root, "bare", 'backend: "python"', "class TritonPythonModel:\n  pass\n")
    add(root, "typing", "max_batch_sise: 3", "")
    add(root, "engine", 'backend: "tensorrt"' + _TENSORS, "")
    add(
        root,
        "pipeline",
        'platform: "ensemble" max_batch_size: 4'
        + _TENSORS
        + 'ensemble_scheduling { step { model_name: "completing" model_version: -1'
        ' input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }',
        "",
    )
    export = root / "exported" / "onnx"
    export.mkdir(parents=True)
    (root / "exported" / "config.json").write_text("{}")
    shutil.copy(root / "identity_fp32" / "1" / "model.onnx", export)
    return root


def add(root: Path, name: str, config: str, source: str) -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if source:
        (version / "model.py").write_text(source)


def check(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, dict[str, Any]]:
    code = command.main([*map(str, argv), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["format"] == "nereid.check/1"
    assert document["problems"] is (code == 1)
    document["by_name"] = {each["name"]: each for each in document["models"]}
    return code, document


def codes(model: dict[str, Any], severity: str = "error") -> list[str]:
    return [each["code"] for each in model["findings"] if each["severity"] == severity]


def messages(model: dict[str, Any]) -> list[str]:
    return [each["message"] for each in model["findings"] if each["severity"] == "error"]


def test_a_whole_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = check(capsys, repository, "--gpus=none")
    assert code == 1
    models = document["by_name"]
    (version,) = models["doubler"]["versions"]
    assert (version["state"], version["batching"]) == ("READY", "dynamic")
    group = {"group": "doubler", "device": "cpu", "count": 1, "passive": False}
    assert [{**each, "group": "doubler"} for each in version["instances"]] == [group]
    # Completed from the model file, as clients would see it.
    assert version["config"]["input"][0]["data_type"] == "TYPE_FP32"
    assert codes(models["doubler"]) == []
    assert "no-dynamic-batching" in codes(models["partial"], "warning") or (
        models["partial"]["versions"][0]["batching"] == "dynamic"
    )
    (broken,) = messages(models["broken"])
    assert broken.startswith("Internal: failed to load 'broken'")
    (typing,) = messages(models["typing"])
    assert 'no field named "max_batch_sise"' in typing
    assert typing.endswith("Did you mean 'max_batch_size'?")
    (gpu,) = messages(models["on_gpu"])
    assert "has kind KIND_GPU but no GPUs are available" in gpu
    (engine,) = messages(models["engine"])
    assert "unable to find backend library for backend 'tensorrt'" in engine
    assert codes(models["engine"], "note") == ["backend-not-installed"]
    (version,) = models["faulty"]["versions"]
    assert (version["state"], version["instances"]) == ("UNAVAILABLE", [])
    assert "SyntaxError" in version["reason"]
    assert codes(models["faulty"]) == ["python-source"]
    assert codes(models["faulty"], "note") == []
    assert codes(models["bare"], "warning") == ["no-inputs"]
    # What Python models complete by themselves is not known, nor what is made of them.
    assert [each["state"] for each in models["completing"]["versions"]] == ["UNKNOWN"]
    assert codes(models["completing"]) == []
    assert codes(models["completing"], "warning") == ["not-completed"]
    assert [each["state"] for each in models["pipeline"]["versions"]] == ["UNKNOWN"]
    assert codes(models["complete"]) == []
    # An export is read where it is.
    (version,) = models["exported"]["versions"]
    assert (version["version"], version["state"]) == (1, "READY")
    assert version["config"]["input"][0]["data_type"] == "TYPE_FP32"
    assert codes(models["exported"], "note")[0] == "export"


def test_some_models_on_other_machines(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--gpus=0,3", "--assume-backend=tensorrt")
    code, document = check(
        capsys, repository, *flags, "--model=on_gpu", "--model=engine", "--model=complete"
    )
    assert code == 0
    assert sorted(document["by_name"]) == ["complete", "engine", "on_gpu"]
    (version,) = document["by_name"]["on_gpu"]["versions"]
    assert [each["device"] for each in version["instances"]] == ["gpu 0", "gpu 3"]
    assert codes(document["by_name"]["on_gpu"], "note") == ["not-read", "no-queue-delay"]
    assert codes(document["by_name"]["engine"], "note") == ["not-read", "no-batching"]
    code, document = check(capsys, repository, "--model=pipeline", "--gpus=none")
    assert sorted(document["by_name"]) == ["completing", "pipeline"]
    assert code == 0
    code, document = check(capsys, repository, "--model=pipeline", "--gpus=none", "--strict")
    assert code == 1


def test_names_that_nobody_or_two_have(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path, "complete", _PYTHON + _TENSORS, "class TritonPythonModel: pass\n")
    code, document = check(capsys, repository, "--model=doublr", "--gpus=none")
    assert code == 1
    (finding,) = document["by_name"]["doublr"]["findings"]
    assert (finding["code"], finding["hint"]) == ("no-such-model", "did you mean 'doubler'?")
    both = (repository, "--model=complete", tmp_path, "--gpus=none")
    code, document = check(capsys, *both)
    assert code == 1
    assert messages(document["by_name"]["complete"]) == [
        "model appears in two or more repositories"
    ]
    code, document = check(capsys, *both, "--model-namespacing=true")
    assert code == 0
    assert [each["namespace"] for each in document["models"]] == sorted(
        [str(repository), str(tmp_path)]
    )


def test_text_for_people(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(repository), "--gpus=none", "--model=typing"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "typing"
    assert lines[-1].startswith("1 model: 1 error")


def test_what_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        [],
        [str(tmp_path / "missing")],
        [str(tmp_path), "--gpus=some"],
        [str(tmp_path), "--backend-config=nothing"],
    ):
        with pytest.raises(SystemExit) as refused:
            command.main(argv)
        assert refused.value.code == 2
    assert "expected backend,key=value" in capsys.readouterr().err


def test_shadows_that_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def parameter(value: str) -> str:
        text = value.replace('"', '\\"')
        return f'\nparameters {{ key: "shadow" value {{ string_value: "{text}" }} }}\n'

    source = "class TritonPythonModel: pass\n"
    for name, to in {
        "good": "model:target",
        "late": "version:2",
        "missing": "model:nowhere",
        "other": "model:wide",
        "outside": "url:grpc://host:8001/m",
        "itself": "model:itself",
        "target": "",
        "wide": "",
        "wrong": "nowhere",
    }.items():
        tensors = _TENSORS.replace("FP32", "INT32") if name == "wide" else _TENSORS
        shadow = parameter(json.dumps({"to": to})) if to else ""
        add(tmp_path, name, _PYTHON + tensors + shadow, source)
    code, document = check(capsys, tmp_path, "--gpus=none")
    assert code == 1
    found = {
        name: [
            (each["message"], each["hint"])
            for each in model["findings"]
            if each["code"] in {"shadow", "load"}
        ]
        for name, model in document["by_name"].items()
    }
    place = "see config.pbtxt:5"
    assert [found[name] for name in ("good", "outside", "target", "wide")] == [[]] * 4
    assert found["late"] == [
        ("version '2' of model 'late' is not ready: nothing is compared", place)
    ]
    assert found["missing"] == [("model 'nowhere' is not ready: nothing is compared", place)]
    assert found["other"] == [("input 'x' is FP32 [1], and INT32 [1] in the shadow", place)]
    for name, text in (("itself", "no shadow of itself"), ("wrong", "expected to be version")):
        ((message, hint),) = found[name]
        assert (text in message, hint) == (True, place)
    # A model that is not rehearsed may be there.
    _, document = check(capsys, tmp_path, "--gpus=none", "--model=good", "--model=late")
    assert codes(document["by_name"]["good"], "warning") == []
    assert codes(document["by_name"]["late"], "warning") == ["shadow"]


def add_native(root: Path, name: str, config: str) -> Path:
    version = native_models.doubler(root / name / "1")
    (version.parent / "config.pbtxt").write_text(config)
    return version.parent / native_models.LIBRARY


def test_libraries_are_loaded_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = 'backend: "onnxruntime"' + native_models.CONFIG
    add_native(tmp_path, "intact", own)
    aborting = add_native(tmp_path, "aborting", own)
    aborting.write_bytes(native_models.library("-DABORT"))
    code, document = check(capsys, tmp_path)
    models = document["by_name"]
    assert code == 1
    assert messages(models["aborting"]) == [
        "Internal: the worker of model 'aborting' ended with signal SIGABRT"
    ]
    assert not codes(models["intact"])


def test_libraries_elsewhere_are_named_by_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openvino")
    root, library = tmp_path / "models", tmp_path / "libraries" / native_models.LIBRARY
    library.parent.mkdir()
    asking = 'parameters { key: "sandbox_allow" value { string_value: "in-process" } }'
    parameter = f'key: "CPU_EXTENSION_PATH" value {{ string_value: "{library}" }}'
    config = f'backend: "openvino" default_model_filename: "model.onnx" {asking}'
    config += f" parameters {{ {parameter} }}"
    add_native(root, "m", config).rename(library)

    def message(*flags: str) -> str:
        _, document = check(capsys, root, *flags)
        return messages(document["by_name"]["m"])[0]

    # What the model asks for is not granted.
    assert "cannot open shared object file" in message()
    # It is found, but no extension of OpenVINO.
    assert "cannot open shared object file" not in message(f"--sandbox-read-path={library.parent}")
