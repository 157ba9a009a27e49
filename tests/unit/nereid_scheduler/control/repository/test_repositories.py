"""Reading model repositories from directories."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nereid.core.errors import INTERNAL_MESSAGE
from nereid.core.variables import Variables
from nereid_scheduler.control.repository import repositories as repository_module
from nereid_scheduler.control.repository.config_files import ConfigFiles
from nereid_scheduler.control.repository.repositories import Repositories
from nereid_scheduler.core.models.found_model import FoundModel, NoVersion
from nereid_scheduler.placement.models.catalogue import FoundName


def add(repository: Path, name: str, config: str | None = None, *versions: str) -> Path:
    for version in versions or ("1",):
        directory = repository / name / version
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(b"")
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return repository / name


def only(repository: Path) -> FoundModel:
    (found,) = Repositories([str(repository)]).scan()
    return found


def reason(found: FoundModel) -> str:
    assert found.error is not None
    return found.error.message


def test_the_backend_is_guessed_from_the_model_file(tmp_path: Path) -> None:
    path = add(tmp_path, "digits")
    found = only(tmp_path)
    assert found.error is None
    assert (found.draft.name, found.draft.backend) == ("digits", "onnxruntime")
    assert found.draft.default_model_filename == "model.onnx"
    assert found.version_path(1) == str(path / "1")


def test_only_whole_numbers_without_leading_zeros_are_versions(tmp_path: Path) -> None:
    names = ("1", "3", "20", "07", "0", "00", "v2", "-1", "4.5", "99999999999999999999", "\u0663")
    path = add(tmp_path, "m", "version_policy { all { } }", *names)
    (path / "8").write_text("a file is no version")
    assert only(tmp_path).versions == (0, 1, 3, 20)


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", (20,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 20)),
        ("version_policy { specific { versions: [1, 20] } }", (1, 20)),
    ],
)
def test_the_version_policy_selects_versions(
    tmp_path: Path, policy: str, versions: tuple[int, ...]
) -> None:
    add(tmp_path, "m", policy, "1", "3", "20")
    assert only(tmp_path).versions == versions


def test_all_versions_have_a_bound_together(tmp_path: Path) -> None:
    policy = "version_policy { all { } } instance_group { count: 200 }"
    add(tmp_path, "m", policy, *map(str, range(1, 7)))
    assert reason(only(tmp_path)) == (
        "instance_group of model 'm' must be at most 1024 instances of 6 versions but is 1200"
    )


def test_models_of_all_repositories_are_sorted_by_name(tmp_path: Path) -> None:
    add(tmp_path / "one", "b")
    add(tmp_path / "two", "a")
    add(tmp_path / "one", ".git")
    (tmp_path / "one" / "README").write_text("no model")
    found = Repositories([str(tmp_path / "one"), str(tmp_path / "two")]).scan()
    assert [(each.name, each.error) for each in found] == [("a", None), ("b", None)]


def test_a_name_in_two_repositories_is_refused(tmp_path: Path) -> None:
    add(tmp_path / "one", "m")
    add(tmp_path / "two", "m")
    add(tmp_path / "two", "other")
    repositories = Repositories([str(tmp_path / "one"), str(tmp_path / "two")])
    found, other = repositories.scan()
    assert reason(found) == "model appears in two or more repositories"
    assert other.error is None
    assert repositories.names() == {
        "m": FoundName("m", "model appears in two or more repositories"),
        "other": FoundName("other"),
    }


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('name: "other"', "unexpected directory name 'm' for model 'other'"),
        ("max_batch_size: many", "failed to read text proto for model 'm'"),
        ("version_policy { specific { versions: 9 } }", "at least one version must be available"),
        (
            'platform: "ensemble" model_repository_agents { agents { name: "checksum" } }',
            "repository agents are not offered for ensembles: 'checksum'",
        ),
        ('platform: "ensemble"', "ensemble scheduling must be set for ensemble m"),
    ],
)
def test_a_bad_configuration_is_an_error_of_the_latest_version(
    tmp_path: Path, config: str, text: str
) -> None:
    add(tmp_path, "m", config, "1", "2")
    found = only(tmp_path)
    assert text in reason(found)
    assert found.versions == (2,)


def test_a_configuration_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (add(tmp_path, "m") / "config.pbtxt").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in reason(only(tmp_path))


def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (add(tmp_path, "m") / "config.pbtxt").mkdir()
    assert "failed to read model 'm': config.pbtxt: " in reason(only(tmp_path))


def test_a_pipe_for_a_configuration_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(add(tmp_path, "m") / "config.pbtxt")
    assert "config.pbtxt: it is not a regular file" in reason(only(tmp_path))


def test_a_directory_without_versions_or_backend_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    found = only(tmp_path)
    assert "Could not determine backend for model 'm'" in reason(found)
    assert found.versions == ()


def test_a_directory_without_a_valid_name_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, "m")
    (tmp_path / "latin\udcff").mkdir()
    (tmp_path / "endless").symlink_to("x" * 300)
    assert only(tmp_path).error is None
    assert "its name is not UTF-8" in caplog.text
    assert "File name too long" in caplog.text


def test_a_bug_affects_one_model_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    add(tmp_path, "m")
    monkeypatch.setattr(repository_module, "fill_backend", explode)
    assert reason(only(tmp_path)) == INTERNAL_MESSAGE
    assert "model 'm' cannot be read" in caplog.text


def export(repository: Path, *files: str) -> Path:
    """A directory that a tool has written."""
    for each in files:
        (repository / "bert" / each).parent.mkdir(parents=True, exist_ok=True)
        (repository / "bert" / each).write_bytes(b"{}")
    return repository / "bert"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (("MLmodel", "model.onnx", "conda.yaml"), "."),
        (("config.json", "tokenizer.json", "model.onnx", "model.onnx_data"), "."),
        (("config.json", "onnx/model.onnx", "onnx/model_quantized.onnx"), "onnx"),
    ],
    ids=["mlflow", "optimum", "transformers-js"],
)
def test_exports_are_served_where_they_are(
    tmp_path: Path, files: tuple[str, ...], place: str
) -> None:
    path = export(tmp_path, *files)
    found = only(tmp_path)
    assert found.error is None
    assert (found.versions, found.draft.backend) == ((1,), "onnxruntime")
    assert found.version_path(1) == str(path / place)
    (tmp_path / "other" / "1").mkdir(parents=True)
    repositories = Repositories([str(tmp_path)])
    again = repositories.find("bert")
    assert again is not None
    # Other models are none of its files.
    assert again.digest == found.digest
    (path / place / "model.onnx").write_bytes(b"changed")
    again = repositories.find("bert")
    assert again is not None
    assert again.digest != found.digest
    assert again.file_digests != found.file_digests


@pytest.mark.parametrize("place", ["", "onnx/"])
def test_an_exports_text_files_are_those_that_it_was_found_with(tmp_path: Path, place: str) -> None:
    path = export(tmp_path, "config.json", "tokenizer.json", f"{place}model.onnx")
    found = only(tmp_path)
    texts = found.text_files[1]
    assert texts.read() == {"config.json": b"{}", "tokenizer.json": b"{}"}
    (path / "tokenizer.json").write_bytes(b"changed")
    with pytest.raises(OSError, match=r"it has changed since the model was loaded"):
        texts.read()
    again = only(tmp_path)
    assert again.digest != found.digest
    assert again.text_files[1].read()["tokenizer.json"] == b"changed"
    assert again.text_files[1].states.keys() == texts.states.keys()


def test_an_export_with_a_huge_configuration_is_served_without_padding(tmp_path: Path) -> None:
    path = export(tmp_path, "config.json", "tokenizer.json", "model.onnx")
    assert only(tmp_path).export_files == {1: {"config.json": b"{}", "tokenizer.json": b""}}
    with (path / "config.json").open("wb") as file:
        file.truncate((1 << 20) + 1)
    found = only(tmp_path)
    assert found.error is None
    assert found.export_files == {1: {}}


def test_a_model_without_a_configuration_is_completed_like_an_export(tmp_path: Path) -> None:
    path = export(tmp_path, "config.json", "tokenizer.json", "1/model.onnx", "2/model.onnx")
    (path / "2" / "config.json").write_bytes(b"[]")
    assert only(tmp_path).export_files == {2: {"config.json": b"[]", "tokenizer.json": b""}}
    (path / "config.pbtxt").write_text('backend: "onnxruntime"')
    assert only(tmp_path).export_files == {}


def test_text_files_are_beside_versions_or_in_them(tmp_path: Path) -> None:
    add(tmp_path, "m")
    (tmp_path / "m" / "1_Pooling").mkdir()
    for name in ("tokenizer.json", "text.json", "1_Pooling/config.json", "1/text.json", "1/x.json"):
        (tmp_path / "m" / name).write_text(name)
    (texts,) = only(tmp_path).text_files.values()
    assert {name: content.decode() for name, content in texts.read().items()} == {
        "tokenizer.json": "tokenizer.json",
        "text.json": "1/text.json",
        "1_Pooling/config.json": "1_Pooling/config.json",
    }


def test_a_package_of_decisions_is_an_export(tmp_path: Path) -> None:
    export(tmp_path, "noulxp.json", "model.onnx", "tokenizer/tokenizer.json")
    found = only(tmp_path)
    assert (found.export, found.draft.backend) == (".", "onnxruntime")
    assert found.text_files[1].states.keys() == {"noulxp.json", "tokenizer/tokenizer.json"}


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        (
            "causal-letters",
            "noulxp.json: profile: 'causal-letters' cannot be served, as",
        ),
        ("encoder-markers", "noulxp.json: weights: expected a file 'model.onnx'"),
    ],
)
def test_a_package_without_a_graph_is_refused(tmp_path: Path, profile: str, text: str) -> None:
    path = export(tmp_path, "model.gguf")
    manifest = {"standard": "noulxp/0.2", "profile": profile}
    (path / "noulxp.json").write_text(json.dumps(manifest))
    assert reason(only(tmp_path)).startswith(text)


@pytest.mark.parametrize(
    "files",
    [
        ("model.onnx",),
        ("config.json", "model.safetensors"),
        ("config.json", "decoder_model.onnx"),
        ("config.json", "model.onnx", "config.pbtxt"),
        ("config.json", "model.onnx", "configs/gpu.pbtxt"),
        ("MLmodel", "model.onnx", "1/labels.txt"),
        ("config.json", "onnx/model.onnx", "20/model.plan"),
    ],
)
def test_what_has_anything_of_tritons_layout_is_no_export(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    path = export(tmp_path, *files)
    found = only(tmp_path)
    assert not found.export
    for number in found.versions:
        assert found.version_path(number) == str(path / str(number))
    assert found.versions or found.error is not None


def test_one_model_is_found_by_its_name_alone(tmp_path: Path) -> None:
    for each in ("one", "two"):
        add(tmp_path / each, "both")
    add(tmp_path / "one", "m")
    (tmp_path / "one" / "file").write_text("")
    repositories = Repositories([str(tmp_path / "one"), str(tmp_path / "two")])
    found = repositories.find("m")
    assert found is not None
    assert (found.error, found.path) == (None, tmp_path / "one" / "m")
    twice = repositories.find("both")
    assert twice is not None
    assert reason(twice) == "model appears in two or more repositories"
    for name in ("", ".", "..", "m/", "m/1", "../one/m", "/m", "file", "nope", "m\0", "\udcff"):
        assert repositories.find(name) is None


def test_a_file_systems_own_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert Repositories([str(tmp_path)]).names() == {}


def found_with(repository: Path, **files: Any) -> FoundModel:
    (found,) = Repositories([str(repository)], ConfigFiles(**files)).scan()
    return found


def test_a_profiles_overlay_is_merged_over_the_configuration(tmp_path: Path) -> None:
    path = add(tmp_path, "m", "max_batch_size: 8\nparameters { key: 'k' }")
    (path / "config.cpu.pbtxt").write_text("max_batch_size: 2")
    (path / "config.gpu.pbtxt").write_text("instance_group { kind: KIND_GPU }")
    (path / "configs").mkdir()
    (path / "configs" / "small.pbtxt").write_text("max_batch_size: 1 metric_tags { key: 's' }")
    plain = only(tmp_path)
    assert (plain.draft.max_batch_size, plain.config_sources) == (8, {})
    on_cpu = found_with(tmp_path, profile="cpu")
    assert (on_cpu.draft.max_batch_size, list(on_cpu.draft.parameters)) == (2, ["k"])
    assert on_cpu.config_sources == {
        "max_batch_size": "config.cpu.pbtxt:1",
        "parameters[k]": "config.pbtxt:2",
    }
    on_gpu = found_with(tmp_path, profile="gpu")
    assert (on_gpu.draft.max_batch_size, len(on_gpu.draft.instance_group)) == (8, 1)
    # An overlay is merged over the file that --model-config-name has chosen, too.
    small = found_with(tmp_path, name="small", profile="gpu")
    assert (small.draft.max_batch_size, len(small.draft.instance_group)) == (1, 1)
    assert small.config_sources["metric_tags[s]"] == "configs/small.pbtxt:1"
    # A model without an overlay is served without.
    assert found_with(tmp_path, profile="arm").draft == plain.draft


def test_an_overlay_changes_the_model_only_in_its_profile(tmp_path: Path) -> None:
    path = add(tmp_path, "m", "max_batch_size: 8")
    before, of_cpu = only(tmp_path), found_with(tmp_path, profile="cpu")
    (path / "config.cpu.pbtxt").write_text("max_batch_size: 2")
    after = only(tmp_path)
    assert (after.digest, after.file_digests) == (before.digest, before.file_digests)
    assert found_with(tmp_path, profile="cpu").digest != of_cpu.digest


def test_an_overlay_may_be_all_there_is(tmp_path: Path) -> None:
    path = add(tmp_path, "m")
    (path / "config.cpu.pbtxt").write_text("max_batch_size: 2")
    assert found_with(tmp_path, profile="cpu").draft.max_batch_size == 2


def test_an_export_has_an_overlay(tmp_path: Path) -> None:
    path = export(tmp_path, "config.json", "tokenizer.json", "onnx/model.onnx")
    plain = found_with(tmp_path, profile="cpu")
    (path / "config.cpu.pbtxt").write_text("max_batch_size: 2")
    found = found_with(tmp_path, profile="cpu")
    assert (found.export, found.error, found.draft.max_batch_size) == ("onnx", None, 2)
    assert found.config_sources == {"max_batch_size": "config.cpu.pbtxt:1"}
    # It is completed as without.
    assert found.export_files == plain.export_files != {}
    assert found.digest != plain.digest


def test_what_is_wrong_after_a_merge_has_its_places(tmp_path: Path) -> None:
    path = add(tmp_path, "m", "max_batch_size: 8\ndynamic_batching { preferred_batch_size: 4 }")
    (path / "config.cpu.pbtxt").write_text("max_batch_size: 2")
    assert reason(found_with(tmp_path, profile="cpu")) == (
        "dynamic batching preferred size must be <= max batch size for m (max_batch_size is from"
        " config.cpu.pbtxt:1, dynamic_batching is from config.pbtxt:2)"
    )
    (path / "config.cpu.pbtxt").write_text("parameters { key: 'traffic' }\nparameters { key: 'x' }")
    assert reason(found_with(tmp_path, profile="cpu")).endswith(
        " but got '' (parameters[traffic] is from config.cpu.pbtxt:1)"
    )


def test_what_is_wrong_in_an_overlay_has_its_place(tmp_path: Path) -> None:
    path = add(tmp_path, "m", "max_batch_size: 8")
    (path / "config.cpu.pbtxt").write_text("# on CPUs\nmax_batch: 2")
    assert "model 'm': config.cpu.pbtxt:2:1: Message type" in reason(
        found_with(tmp_path, profile="cpu")
    )
    (path / "config.cpu.pbtxt").write_bytes(b"\xff")
    assert reason(found_with(tmp_path, profile="cpu")) == (
        "config.cpu.pbtxt of model 'm' is not UTF-8 text"
    )


def test_a_configuration_may_ask_for_variables(tmp_path: Path) -> None:
    text = "# nereid: variables\nmetric_tags { key: 'team' value: '${MODEL_TEAM:-none}' }"
    path = add(tmp_path, "m", text)
    variables = Variables(("MODEL_*",), {"MODEL_TEAM": "vision"})
    found = found_with(tmp_path, variables=variables)
    assert found.draft.metric_tags["team"] == "vision"
    assert found.config_sources == {"metric_tags[team]": "config.pbtxt:2"}
    assert reason(only(tmp_path)).endswith(
        "config.pbtxt:2: --model-config-env does not allow the variable 'MODEL_TEAM'"
    )
    # Never by default.
    (path / "config.pbtxt").write_text(text.replace("#", "##"))
    found = found_with(tmp_path, variables=variables)
    assert found.draft.metric_tags["team"] == "${MODEL_TEAM:-none}"


def test_versions_replace_those_of_the_policy(tmp_path: Path) -> None:
    add(tmp_path, "m", "version_policy { latest { num_versions: 1 } }", "1", "2", "3")
    repositories = Repositories([str(tmp_path)])
    plain = repositories.require("m")
    assert plain.versions == (3,)
    some = repositories.require("m", None, (1, 2, 9))
    assert some.versions == (1, 2)
    # A load without versions finds a change.
    assert some.digest != plain.digest
    none = repositories.require("m", None, ())
    assert isinstance(none.error, NoVersion)
