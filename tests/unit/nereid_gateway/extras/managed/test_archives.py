"""What archives of multi-model mode become in a model repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nereid.core.errors import AlreadyExists, InvalidArgument, NotFound
from nereid.model_config import parse_config
from nereid.pb import model_config_pb2
from nereid_gateway.extras.managed.archives import Archive, Archives, check_key, model_name

ENSEMBLE = """
name: "ens"
platform: "ensemble"
ensemble_scheduling {
  step [
    { model_name: "first" model_version: -1 },
    { model_name: "elsewhere" model_version: -1 }
  ]
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path


@pytest.fixture
def archives(root: Path) -> Archives:
    return Archives(root / "repository", root / "archives")


def save(folder: Path, config: str | None, version: str = "1") -> None:
    (folder / version).mkdir(parents=True)
    (folder / version / "model.onnx").write_bytes(b"content of " + folder.name.encode())
    if config is not None:
        (folder / "config.pbtxt").write_text(config)


def config_of(root: Path, name: str) -> model_config_pb2.ModelConfig:
    text = (root / "repository" / name / "config.pbtxt").read_text()
    return parse_config(text, model_name=name)


def models_in(root: Path) -> list[str]:
    return sorted(each.name for each in (root / "repository").iterdir() if each.name[0] != ".")


def test_an_archive_that_is_a_model(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    save(url, 'name: "bert"\nmax_batch_size: 8\n')
    (url / "labels.txt").write_text("zero\n")
    archive = archives.add("0a1b", str(url), "bert-v1.tar.gz")
    # The platform is told of the parent, as by Triton.
    assert archive == Archive("0a1b", "bert-v1.tar.gz", ("bert-v1.tar.gz",), str(url.parent))
    folder = root / "repository" / "bert-v1.tar.gz"
    assert (folder / "1" / "model.onnx").read_bytes() == b"content of model"
    assert (folder / "labels.txt").read_text() == "zero\n"
    config = config_of(root, "bert-v1.tar.gz")
    assert (config.name, config.max_batch_size) == ("bert-v1.tar.gz", 8)
    # Others find it by its record.
    others = Archives(root / "repository", root / "archives")
    assert others.find("0a1b") == archive
    assert others.all() == [archive]
    others.remove(archive)
    assert models_in(root) == []
    assert archives.all() == []
    # Only the links went.
    assert (url / "1" / "model.onnx").exists()


def test_a_model_without_a_configuration(root: Path, archives: Archives) -> None:
    save(root / "archives" / "0a1b" / "model", None)
    assert archives.add("0a1b", str(root / "archives" / "0a1b" / "model"), "").model == "0a1b"
    assert config_of(root, "0a1b") == model_config_pb2.ModelConfig(name="0a1b")


def test_an_archive_with_a_folder_of_its_model(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    save(url / "bert", 'name: "bert"\n')
    (url / ".hidden").mkdir()
    (url / "README").write_text("no folder")
    archive = archives.add("0a1b", str(url), "")
    assert archive == Archive("0a1b", "0a1b", ("0a1b",), str(url))
    assert config_of(root, "0a1b").name == "0a1b"


def test_the_steps_of_an_ensemble_get_names_of_their_own(root: Path, archives: Archives) -> None:
    for key in ("a", "b"):
        url = root / "archives" / key / "model"
        save(url / "ens", ENSEMBLE)
        save(url / "first", 'name: "first"\n')
        archive = archives.add(key, str(url), "")
        assert archive.models == (key, f"{key}.first")
        assert config_of(root, f"{key}.first").name == f"{key}.first"
        steps = config_of(root, key).ensemble_scheduling.step
        assert [each.model_name for each in steps] == [f"{key}.first", "elsewhere"]
    assert models_in(root) == ["a", "a.first", "b", "b.first"]
    assert [each.key for each in archives.all()] == ["a", "b"]


@pytest.mark.parametrize(
    ("folders", "text"),
    [
        ({}, "neither a configuration nor a folder"),
        ({"x": None, "y": None}, "x, y, of which not just one is an ensemble"),
        ({"x": ENSEMBLE, "y": ENSEMBLE}, "x, y, of which not just one is an ensemble"),
        ({"x": "max_batch_size: many"}, "failed to read text proto for model 'x'"),
    ],
    ids=["empty", "several models", "several ensembles", "damaged"],
)
def test_what_cannot_be_served(
    root: Path, archives: Archives, folders: dict[str, str | None], text: str
) -> None:
    url = root / "archives" / "0a1b" / "model"
    url.mkdir(parents=True)
    for name, config in folders.items():
        save(url / name, config)
    with pytest.raises(InvalidArgument, match=text):
        archives.add("0a1b", str(url), "")
    assert models_in(root) == []
    assert archives.all() == []


def test_a_configuration_that_is_no_text(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    save(url, None)
    (url / "config.pbtxt").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        archives.add("0a1b", str(url), "")


def test_a_configuration_that_is_no_file_is_not_waited_for(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    save(url / "bert", None)
    os.mkfifo(url / "bert" / "config.pbtxt")
    with pytest.raises(OSError, match="not a regular file"):
        archives.add("0a1b", str(url), "")
    assert models_in(root) == []


def test_an_archive_of_many_models(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    for number in range(257):
        (url / f"m{number}").mkdir(parents=True)
    with pytest.raises(InvalidArgument, match="more than 256 models"):
        archives.add("0a1b", str(url), "")


def test_a_name_that_is_taken_leaves_nothing_behind(root: Path, archives: Archives) -> None:
    url = root / "archives" / "0a1b" / "model"
    save(url / "ens", ENSEMBLE)
    save(url / "first", None)
    # Of another model of the mesh.
    save(root / "repository" / "0a1b.first", 'name: "0a1b.first"\n')
    with pytest.raises(AlreadyExists, match=r"a model '0a1b\.first' already"):
        archives.add("0a1b", str(url), "")
    assert models_in(root) == ["0a1b.first"]
    assert config_of(root, "0a1b.first").name == "0a1b.first"
    with pytest.raises(NotFound):
        archives.find("0a1b")


def test_only_what_is_below_the_root_is_an_archive(root: Path, archives: Archives) -> None:
    save(root / "elsewhere" / "model", None)
    (root / "archives").mkdir()
    (root / "archives" / "link").symlink_to(root / "elsewhere" / "model")
    for url in ("elsewhere/model", "archives/link", "archives/../elsewhere/model", "archives"):
        with pytest.raises(InvalidArgument, match="is not below"):
            archives.add("0a1b", str(root / url), "")
    with pytest.raises(InvalidArgument, match="no such directory"):
        archives.add("0a1b", str(root / "archives" / "missing"), "")
    assert models_in(root) == []


def test_damaged_records_are_none(root: Path, archives: Archives) -> None:
    assert archives.all() == []
    records = root / "repository" / ".sagemaker"
    records.mkdir()
    for name, text in (("a", "{"), ("b", "{}"), ("c", '{"models": [], "other": 1}')):
        (records / name).write_text(text)
    assert archives.all() == []
    for key in ("a", "../a", "", "."):
        with pytest.raises(NotFound):
            archives.find(key)


@pytest.mark.parametrize("key", ["", ".", ".a", "a/b", "a b", "\u00e9", "a?b", "a#b", "a" * 201])
def test_names_that_are_no_part_of_a_target(key: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be served"):
        check_key(key)
    assert model_name("0a1b", key) == "0a1b"


def test_names_as_the_platform_makes_them() -> None:
    assert check_key("0a1b2c") == "0a1b2c"
    assert model_name("0a1b", "resnet_50-v1.tar.gz") == "resnet_50-v1.tar.gz"
