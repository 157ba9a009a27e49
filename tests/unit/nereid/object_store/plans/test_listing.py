"""What a listing says of models, and when they count as changed."""

from __future__ import annotations

import pytest

from nereid.object_store.plans.listing import (
    ModelListing,
    StoredObject,
    changed_models,
    is_plain_key,
    split_into_models,
)

A, B = StoredObject(3, "a"), StoredObject(3, "b")
FILES = {
    "config.pbtxt": A,
    "labels.txt": A,
    "configs/fast.pbtxt": A,
    "env/lib.so": A,
    "1/model.onnx": A,
    "2/model.onnx": A,
    "2/data/weights": A,
}


def test_subfolders_and_what_is_in_them() -> None:
    listing = ModelListing(FILES, ["3", "4/deep"])
    assert listing.subfolders() == {"1", "2", "3", "4", "env", "configs"}
    assert listing.names_in("2") == ["data", "model.onnx"]
    assert listing.names_in("4") == ["deep"]
    assert listing.names_in("3") == []


def test_a_version_has_its_files_and_the_shared_ones() -> None:
    files = ModelListing(FILES).version_files("2")
    assert set(files) == {
        "config.pbtxt",
        "labels.txt",
        "env/lib.so",
        "2/model.onnx",
        "2/data/weights",
    }


@pytest.mark.parametrize("path", ["labels.txt", "env/lib.so", "2/model.onnx", "2/new"])
def test_a_changed_file_changes_the_digest(path: str) -> None:
    before = ModelListing(FILES).digest("2")
    assert len(before) == 16
    assert ModelListing(FILES | {path: B}).digest("2") != before
    assert ModelListing(FILES | {path: A._replace(size=4)}).digest("2") != before


@pytest.mark.parametrize("path", ["config.pbtxt", "configs/fast.pbtxt", "1/model.onnx"])
def test_configurations_and_other_versions_do_not(path: str) -> None:
    assert ModelListing(FILES | {path: B}).digest("2") == ModelListing(FILES).digest("2")


def test_repositories_are_split_into_models() -> None:
    keys = {"m/config.pbtxt": A, "m/1/model.onnx": B, "README.md": A, ".git/HEAD": A}
    models = split_into_models(keys, ["m/2", "empty", ".hidden"])
    assert list(models) == ["empty", "m"]
    assert models["m"] == ModelListing({"config.pbtxt": A, "1/model.onnx": B}, ["2"])
    assert models["empty"] == ModelListing({})
    assert models["m"] != models["empty"]
    assert models["m"] != "m"


def test_what_has_changed() -> None:
    same, old, new = ModelListing({"x": A}), ModelListing({"x": A}), ModelListing({"x": B})
    before = {"same": same, "changed": old, "deleted": old}
    after = {"same": ModelListing({"x": A}), "changed": new, "new": new}
    assert changed_models(before, after) == {"changed", "deleted", "new"}


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        ("a/b", True),
        ("a..b", True),
        ("../a", False),
        ("a/./b", False),
        ("a//b", False),
        ("/a", False),
        ("a\0b", False),
        ("", False),
    ],
)
def test_keys_that_are_paths(key: str, plain: bool) -> None:
    assert is_plain_key(key) is plain
