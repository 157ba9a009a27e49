"""Which backends the files in a repository are for."""

from pathlib import Path

from nereid_mesh.serve.likely_backends import likely_backends


def test_files_of_versions_say_which_backends_are_likely(tmp_path: Path) -> None:
    for path in ("a/1/model.onnx", "b/2/model.py", "c/3/model.onnx", "d/notes/model.pt", "e/1/x"):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "README").touch()
    assert likely_backends([str(tmp_path)]) == ("onnxruntime", "python")


def test_what_is_no_directory_has_none(tmp_path: Path) -> None:
    assert likely_backends(["s3://bucket/models", str(tmp_path / "missing")]) == ()
