"""Repositories in object stores, as the scheduler reads them, beside one on disk."""

from pathlib import Path
from threading import Event

import pytest

from nereid.core.errors import Internal, InvalidArgument, Unavailable
from nereid.object_store.errors import ObjectChangedError, StoreError
from nereid.object_store.plans.listing import StoredObject
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.repositories import Repositories
from nereid_scheduler.control.repository.stored_repository import (
    StoredRepository,
    open_stored_repositories,
)
from nereid_scheduler.core.models.found_model import FoundModel
from tests.support.object_stores.memory_store import MemoryFiles

URL = "s3://b/models"
CONFIG = b'backend: "identity" input { name: "X" dims: 1 data_type: TYPE_FP32 }'
ENSEMBLE = b"""
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 label_filename: "labels.txt" }
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""


class Fixture:
    def __init__(self, tmp_path: Path, config_name: str = "", profile: str = "") -> None:
        self.files = MemoryFiles(
            {"b/models/m/config.pbtxt": CONFIG, "b/models/m/1/data": b"x", "b/models/m/2/data": b""}
        )
        self.local = tmp_path / "local"
        (self.local / "beside" / "1").mkdir(parents=True)
        (self.local / "beside" / "config.pbtxt").write_bytes(CONFIG)
        config_files = ConfigFiles(config_name, profile)
        self.stored = StoredRepository(self.files.open_store(URL), config_files)
        paths = [str(self.local), URL]
        self.repositories = Repositories(paths, config_files, stored={URL: self.stored})

    def scan(self) -> dict[str, FoundModel]:
        return {each.name: each for each in self.repositories.scan()}

    def fail(self) -> None:
        def fail() -> None:
            raise ConnectionRefusedError("nobody listens")

        self.files.before_list = fail


@pytest.fixture
def it(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_repositories_of_both_kinds(it: Fixture) -> None:
    found = it.scan()
    assert sorted(found) == ["beside", "m"]
    model = found["m"]
    assert model.error is None
    assert model.exists
    assert model.draft.backend == "identity"
    assert model.versions == (2,)
    assert model.version_path(2) == "s3://b/models/m/2"
    listing = it.files.open_store(URL).list_model("m")
    assert model.file_digests == {2: listing.digest("2")}
    assert it.repositories.names().keys() == {"beside", "m"}


def test_a_scan_without_changes_reads_no_object(it: Fixture) -> None:
    first = it.scan()
    it.files.reads.clear()
    lists = it.files.lists
    assert it.scan()["m"].digest == first["m"].digest
    assert it.files.reads == []
    assert it.files.lists == lists + 1


@pytest.mark.parametrize("key", ["m/config.pbtxt", "m/1/data", "m/3/new"])
def test_changes(it: Fixture, key: str) -> None:
    before = it.scan()["m"].digest
    it.files.objects[f"b/models/{key}"] = CONFIG + b" "
    assert it.scan()["m"].digest != before


def test_text_files_are_those_of_the_listing(it: Fixture) -> None:
    large = b"shared" * 60_000
    it.files.objects["b/models/m/tokenizer.json"] = large
    it.files.objects["b/models/m/2/config.json"] = b"own"
    it.files.objects["b/models/m/1/text.json"] = b"of another version"
    texts = it.scan()["m"].text_files[2]
    assert texts.read() == {"tokenizer.json": large, "config.json": b"own"}
    with pytest.raises(OSError, match="more than 5 bytes"):
        texts.read_file("tokenizer.json", 5)
    it.files.objects["b/models/m/tokenizer.json"] = large.upper()
    with pytest.raises(ObjectChangedError):
        texts.read()


def test_a_model_without_a_configuration_is_completed_like_an_export(it: Fixture) -> None:
    objects = it.files.objects
    objects["b/models/n/1/model.onnx"] = b"graph"
    objects["b/models/n/config.json"] = b"[]"
    objects["b/models/n/tokenizer.json"] = b"large"
    files = {1: {"config.json": b"[]", "tokenizer.json": b""}}
    assert it.scan()["n"].export_files == files
    reads = it.files.reads.copy()
    assert it.scan()["n"].export_files == files
    assert it.files.reads == reads
    objects["b/models/n/config.pbtxt"] = CONFIG
    assert it.scan()["n"].export_files == {}


def test_an_export_in_a_store_needs_a_version(it: Fixture) -> None:
    it.files.objects["b/models/n/onnx/model.onnx"] = b"graph"
    it.files.objects["b/models/n/config.json"] = b"{}"
    error = it.scan()["n"].error
    assert isinstance(error, InvalidArgument)
    assert "in an object store its onnx/model.onnx belongs into a folder '1'" in error.message


def test_a_listing_that_fails_changes_nothing(it: Fixture) -> None:
    before = it.scan()
    it.files.objects.clear()
    assert it.scan().keys() == before.keys()
    assert "no such object or bucket" in it.stored.problem
    it.fail()
    assert {name: each.digest for name, each in it.scan().items()} == {
        name: each.digest for name, each in before.items()
    }
    assert it.repositories.problems == {
        URL: "s3://b/models: ConnectionRefusedError: nobody listens"
    }
    names = it.repositories.names()
    assert names["m"].problem == "s3://b/models: ConnectionRefusedError: nobody listens"
    assert names["beside"].problem == ""
    # A model there cannot be loaded now; one on disk can.
    found = it.repositories.find("m")
    assert found is not None
    assert isinstance(found.error, Internal)
    assert "nobody listens" in found.error.message
    beside = it.repositories.find("beside")
    assert beside is not None
    assert beside.error is None
    it.files.before_list = lambda: None
    it.files.objects["b/models/n/1/data"] = b""
    assert it.scan().keys() == {"beside", "n"}
    assert it.repositories.problems == {}


def test_a_listing_without_models_counts_when_seen_twice(
    it: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    it.files.objects = {"b/models/README.md": b"", "b/models/m/1/data": b""}
    for list_ in (it.stored.list_all, it.stored.list_names):
        it.files.objects["b/models/m/1/data"] = b""
        assert list_().keys() == {"m"}
        del it.files.objects["b/models/m/1/data"]
        caplog.clear()
        assert list_().keys() == {"m"}
        assert it.stored.problem == (
            "it has no models, where there were some; if the next one has none, they are unloaded"
        )
        assert [each.levelname for each in caplog.records] == ["ERROR"]
        assert list_().keys() == set()
        assert it.stored.problem == ""


def test_a_doubted_listing_is_forgotten_with_the_next_one(it: Fixture) -> None:
    models = dict(it.files.objects)
    it.scan()
    for _ in range(3):
        it.files.objects = {"b/models/README.md": b""}
        assert "m" in it.scan()
        it.files.objects = dict(models)
        assert "m" in it.scan()


def test_reasons_that_take_turns_are_logged_once(
    it: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(text: str) -> None:
        def refuse() -> None:
            raise ConnectionError(text)

        it.files.before_list = refuse
        it.scan()

    it.scan()
    for _ in range(2):
        caplog.clear()
        for text in (*"abab", *map(str, range(20))):
            fail(text)
            assert it.stored.problem.endswith(f": {text}")
        assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 16
        it.files.before_list = lambda: None
        it.scan()


def test_the_first_listing_has_to_succeed(it: Fixture) -> None:
    it.fail()
    with pytest.raises(StoreError, match="nobody listens"):
        it.repositories.scan()
    with pytest.raises(StoreError, match="nobody listens"):
        it.repositories.find("m")


def test_one_model_is_listed_alone(it: Fixture) -> None:
    found = it.repositories.find("m")
    assert found is not None
    assert found.versions == (2,)
    assert it.repositories.find("none") is None


def test_a_configuration_that_cannot_be_read(it: Fixture) -> None:
    def refuse(path: str, *_: object) -> None:
        if path.endswith("pbtxt"):
            raise PermissionError("Access Denied")

    it.files.before_read = refuse
    error = it.scan()["m"].error
    assert error is not None
    assert "access was refused: Access Denied" in error.message
    it.files.before_read = lambda *_: None
    assert it.scan()["m"].error is None


def test_a_configuration_that_is_too_large(it: Fixture) -> None:
    with pytest.raises(StoreError, match="too large"):
        it.stored.read("m/config.pbtxt", StoredObject(1 << 30, "tag"))


def test_configurations_by_name(tmp_path: Path) -> None:
    it = Fixture(tmp_path, "fast")
    assert it.scan()["m"].draft.max_batch_size == 0
    it.files.objects["b/models/m/configs/fast.pbtxt"] = CONFIG + b" max_batch_size: 8"
    assert it.scan()["m"].draft.max_batch_size == 8


def test_labels_of_an_ensemble_come_along(it: Fixture) -> None:
    it.files.objects |= {
        "b/models/e/config.pbtxt": ENSEMBLE,
        "b/models/e/1/.keep": b"",
        "b/models/e/labels.txt": b"cat\r\ndog",
    }
    found = it.scan()["e"]
    assert found.error is None
    assert found.labels == {"Y": ("cat", "dog")}
    del it.files.objects["b/models/e/labels.txt"]
    error = it.scan()["e"].error
    assert error is not None
    assert "failed to open text file for read e/labels.txt: No such file" in error.message


def test_deleted_models_are_forgotten(it: Fixture) -> None:
    it.files.objects["b/models/n/config.pbtxt"] = CONFIG
    it.scan()
    assert "n/config.pbtxt" in it.stored._contents
    del it.files.objects["b/models/n/config.pbtxt"]
    it.scan()
    assert set(it.stored._contents) == {"m/config.pbtxt"}


def test_only_urls_are_opened() -> None:
    opened = open_stored_repositories(["/models", URL], {}, ConfigFiles())
    assert opened.keys() == {URL}
    assert opened[URL].store.url.text == URL
    assert Unavailable.code == 14


def test_a_store_that_does_not_respond_holds_nothing_up(it: Fixture) -> None:
    stored = StoredRepository(it.files.open_store(URL), limit_s=0.01)
    repositories = Repositories([str(it.local), URL], stored={URL: stored})
    assert repositories.names().keys() == {"beside", "m"}
    released = Event()
    it.files.before_list = lambda: assert_true(released.wait(60))
    # As of the last listing.
    assert repositories.names().keys() == {"beside", "m"}
    assert repositories.require("beside").error is None
    error = repositories.require("m").error
    assert error is not None
    assert "s3://b/models: " in error.message
    released.set()


def assert_true(value: object) -> None:
    assert value


def test_overlays_in_a_store(tmp_path: Path) -> None:
    it = Fixture(tmp_path, profile="cpu")
    before = it.scan()["m"]
    it.files.objects["b/models/m/config.gpu.pbtxt"] = b"max_batch_size: 3"
    assert it.scan()["m"].digest == before.digest
    it.files.objects["b/models/m/config.cpu.pbtxt"] = b"max_batch_size: 3"
    after = it.scan()["m"]
    assert after.digest != before.digest
    assert after.file_digests == before.file_digests
    assert after.draft.max_batch_size == 3
