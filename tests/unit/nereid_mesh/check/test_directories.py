"""What is said about the names of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from nereid.model_config import parse_config
from nereid.pb.model_config_pb2 import ModelConfig
from nereid_mesh.check.directories import model_findings, repository_findings, version_findings

_OFFERED = ("onnxruntime", "python")


def place(root: Path, *files: str) -> Path:
    """Empty files, and folders where a name ends in a slash."""
    for each in files:
        path = root / each
        (path if each.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not each.endswith("/"):
            path.touch()
    return root


def config(text: str) -> ModelConfig:
    return parse_config(text, model_name="m")


def found(root: Path, written: ModelConfig | None, *served: int) -> list[tuple[str, str]]:
    findings = [*model_findings(root, written, served, _OFFERED)]
    if all(each.code != "export" for each in findings):
        for number in served:
            findings += version_findings(root / str(number), written, is_completed=False)
    return [(each.code, each.hint or each.message) for each in findings]


def test_a_tidy_model_has_no_findings(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "labels.txt", "1/model.onnx", "warmup/")
    assert found(tmp_path, config('backend: "onnxruntime"'), 1) == []


@pytest.mark.parametrize("name", ["config.pbtext", "Config.pbtxt", "config.pb.txt", "config.pbtx"])
def test_a_configuration_under_another_name(tmp_path: Path, name: str) -> None:
    place(tmp_path, name, "1/model.onnx")
    assert found(tmp_path, None, 1) == [("config-file-name", "rename it to config.pbtxt")]


def test_an_overlay_needs_no_configuration_beside_it(tmp_path: Path) -> None:
    place(tmp_path, "config.cpu.pbtxt", "1/model.onnx")
    assert found(tmp_path, None, 1) == []


def test_folders_that_are_nearly_versions(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "v1/", "02/", "version_3/", "assets/", "4/model.onnx")
    assert found(tmp_path, None, 4) == [
        ("version-folder-name", "did you mean '2'?"),
        ("version-folder-name", "did you mean '1'?"),
        ("version-folder-name", "did you mean '3'?"),
    ]


def test_a_model_file_outside_of_a_version(tmp_path: Path) -> None:
    place(tmp_path, "model.onnx")
    assert found(tmp_path, None) == [("misplaced-file", f"move it to {tmp_path / '1'}/")]


@pytest.mark.parametrize(
    ("text", "file", "near"),
    [
        ('backend: "onnxruntime"', "resnet.onnx", "resnet.onnx"),
        ("", "resnet.onnx", "resnet.onnx"),
        ('backend: "onnxruntime" default_model_filename: "a.onnx"', "model.onnx", "model.onnx"),
        ('backend: "onnxruntime"', "notes.txt", ""),
        ("", "notes.txt", ""),
        ('backend: "custom"', "x.onnx", ""),
        ('platform: "ensemble"', "x.onnx", ""),
    ],
)
def test_a_model_file_under_another_name(tmp_path: Path, text: str, file: str, near: str) -> None:
    place(tmp_path, "config.pbtxt", f"1/{file}")
    hint = f'rename it, or set default_model_filename: "{near}"'
    assert found(tmp_path, config(text), 1) == ([("model-file-name", hint)] if near else [])


def test_a_model_file_of_another_platform(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "1/model.pt2")
    hint = 'set platform: "torch_aoti"'
    assert ("model-file-name", hint) in found(tmp_path, config('backend: "pytorch"'), 1)


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ('backend: "onnx_runtime"', "unknown-backend", "did you mean 'onnxruntime'?"),
        ('backend: "mine"', "", ""),
        ('platform: "onnxruntime"', "unknown-platform", "did you mean 'onnxruntime_onnx'?"),
        ('platform: "zzz"', "", ""),
    ],
)
def test_backends_and_platforms(tmp_path: Path, text: str, code: str, hint: str) -> None:
    place(tmp_path, "config.pbtxt", "1/")
    assert found(tmp_path, config(text), 1) == ([(code, hint)] if code else [])


def test_a_backend_that_this_machine_lacks(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "1/model.plan")
    ((code, hint),) = found(tmp_path, config('backend: "tensorrt"'), 1)
    assert code == "backend-not-installed"
    assert hint.endswith("--assume-backend=tensorrt")


def test_versions_that_the_policy_does_not_select(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "1/model.onnx", "2/model.onnx", "10/model.onnx")
    latest = config('backend: "onnxruntime" version_policy { latest { num_versions: 1 } }')
    assert [code for code, _ in found(tmp_path, latest, 10)] == ["unserved-versions"]
    specific = config('backend: "onnxruntime" version_policy { specific { versions: [ 2, 3 ] } }')
    missing, unserved = found(tmp_path, specific, 2)
    assert missing == ("missing-versions", "there are 1, 2, 10")
    assert unserved[1] == "version_policy (specific) does not select versions 1, 10"


def test_versions_whose_load_failed_before_the_policy_was_read(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "1/model.onnx", "2/model.onnx")
    written = config('backend: "onnxruntime" version_policy { all { } }')
    assert found(tmp_path, written, 2) == []


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("class TritonPythonModel:\n    pass\n", ""),
        ("from mine import TritonPythonModel\n", ""),
        ("from mine import Model as TritonPythonModel\n", ""),
        ("from mine import *\n", ""),
        ("import nonesuch\nfrom mine import *\n", "install it where executors run"),
        ("try:\n    import nonesuch\nexcept ImportError:\n    pass\nfrom mine import *\n", ""),
        ("class Model:\n    pass\n", "has no class TritonPythonModel"),
        ("class TritonPythonModel\n", "SyntaxError"),
    ],
)
def test_python_sources_are_read_not_run(tmp_path: Path, source: str, error: str) -> None:
    place(tmp_path, "config.pbtxt", "1/model.py", "1/mine.py")
    (tmp_path / "1/model.py").write_text(source)
    findings = found(tmp_path, config('backend: "python" input { name: "x" }'), 1)
    code = "missing-package" if "install" in error else "python-source"
    assert [code for code, _ in findings] == ([code] if error else [])
    assert all(error in text for _, text in findings)


_CLASS = "class TritonPythonModel:\n    "


@pytest.mark.parametrize(
    ("text", "source", "is_completed", "is_named"),
    [
        ('backend: "python"', _CLASS + "pass\n", False, True),
        ("", _CLASS + "pass\n", False, True),
        ('backend: "python" input { name: "x" }', _CLASS + "pass\n", False, False),
        # What it completes is not known before it was run.
        ('backend: "python"', _CLASS + "def auto_complete_config(c): return c\n", False, False),
        ('backend: "python"', _CLASS + "def auto_complete_config(c): return c\n", True, True),
        ('backend: "python"', "from mine import TritonPythonModel\n", False, False),
        ('backend: "python"', "class TritonPythonModel(B):\n    pass\n", False, False),
    ],
)
def test_a_python_model_without_inputs(
    tmp_path: Path, text: str, source: str, is_completed: bool, is_named: bool
) -> None:
    place(tmp_path, "1/model.py", "1/mine.py")
    (tmp_path / "1/model.py").write_text(source)
    findings = [*version_findings(tmp_path / "1", config(text), is_completed=is_completed)]
    assert [each.code for each in findings] == (["no-inputs"] if is_named else [])
    assert all("auto_complete_config(config)" in each.hint for each in findings)


def test_packages_that_a_python_model_brings(tmp_path: Path) -> None:
    place(tmp_path, "config.pbtxt", "1/model.py", "requirements.txt")
    (tmp_path / "1/model.py").write_text("import nonesuch\nfrom mine import *\n")
    (tmp_path / "requirements.txt").write_text("nonesuch")
    assert found(tmp_path, config('backend: "python"'), 1) == []
    (tmp_path / "requirements.txt").write_text("-e .")
    assert [code for code, _ in found(tmp_path, config('backend: "python"'), 1)] == [
        "python-packages"
    ]


def test_repositories(tmp_path: Path) -> None:
    def codes(path: Path) -> list[str]:
        return [each.code for each in repository_findings(path)]

    assert codes(place(tmp_path / "tidy", "m/1/model.onnx", ".git/", "README.md")) == []
    assert codes(place(tmp_path / "model", "config.pbtxt", "1/model.onnx")) == [
        "model-as-repository"
    ]
    assert codes(place(tmp_path / "version", "1/model.onnx")) == ["model-as-repository"]
    assert codes(place(tmp_path / "volume", "m/1/model.onnx", "lost+found/")) == [
        "file-system-folder"
    ]
    loose = place(tmp_path / "loose", "resnet.onnx", "m/1/model.onnx")
    assert codes(loose) == ["misplaced-file"]
    assert codes(place(tmp_path / "empty", ".git/", "x.txt")) == ["empty-repository"]


def test_exports_of_other_tools(tmp_path: Path) -> None:
    model = place(tmp_path, "bert/config.json", "bert/onnx/model.onnx") / "bert"
    ((code, hint),) = found(model, None, 1)
    assert code == "export"
    assert "ln -s its folder to NAME/1" in hint
    (finding,) = repository_findings(model)
    assert finding.code == "model-as-repository"
    assert list(repository_findings(tmp_path)) == []


@pytest.mark.parametrize("mark", ["config.json", "MLmodel"])
def test_a_directory_of_another_tool_without_onnx(tmp_path: Path, mark: str) -> None:
    place(tmp_path, mark, "model.safetensors")
    ((code, hint),) = found(tmp_path, None)
    assert code == "no-export"
    assert "optimum-cli" in hint
