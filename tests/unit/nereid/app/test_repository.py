"""Written repositories: configurations, applications' files, and what is refused."""

from pathlib import Path

import pytest

import nereid
from nereid.app.loading import application_files, fingerprint, load_file, place_of
from nereid.app.model import Model
from nereid.app.repository import SourceError, config_text, write_models
from nereid.model_config.text_format import parse_config

APP = """
import package.part
from helper import FACTOR
import nereid

@nereid.model
def scaled(x: float) -> float:
    return x * FACTOR

@nereid.model
def other(x: float) -> float:
    return x

nereid.serve(scaled)
raise AssertionError("the file ends where it serves")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper.py").write_text("import deeper\nFACTOR = 2\n")
    (tmp_path / "deeper.py").write_text("")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("from . import sibling\n")
    (tmp_path / "package" / "sibling.py").write_text("")
    path = tmp_path / f"{tmp_path.name}.py"
    path.write_text(APP)
    return path


def model_of(path: Path, name: str = "scaled") -> Model:
    model: Model = getattr(load_file(path), name)
    return model


def test_the_configuration() -> None:
    @nereid.model(
        batch=True,
        max_batch_size=8,
        max_delay_us=100,
        instances=2,
        cache=True,
        config={
            "version_policy": {"latest": {"num_versions": 1}},
            "instance_group": [{"count": 3, "kind": "KIND_CPU"}],
            "parameters": {"a": {"string_value": "b"}},
        },
    )
    def function(text: str, x: nereid.Tensor["float32", 2, -1]) -> str:
        return text * len(x)

    config = parse_config(config_text(function), model_name="function")
    assert config.max_batch_size == 8
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert [group.count for group in config.instance_group] == [3]
    assert config.response_cache.enable
    assert [list(each.dims) for each in config.input] == [[1], [2, -1]]
    parameters = {name: each.string_value for name, each in config.parameters.items()}
    assert parameters == {"a": "b", "text_tensors": "text,output", "scalar_tensors": "text,output"}


def test_an_unknown_field_of_config_is_refused() -> None:
    @nereid.model(config={"max_bach_size": 3})
    def function(x: float) -> float:
        return x

    with pytest.raises(SourceError, match=r"model 'function': config=:.*max_bach_size"):
        config_text(function)


def test_an_environment_of_its_own_is_refused() -> None:
    @nereid.model(config={"parameters": {"EXECUTION_ENV_PATH": {"string_value": "/env"}}})
    def function(x: float) -> float:
        return x

    with pytest.raises(SourceError, match="EXECUTION_ENV_PATH: functions run in the Python that"):
        config_text(function)


def test_a_file_is_referred_to_and_saved_with_what_it_imports(app: Path, tmp_path: Path) -> None:
    model = model_of(app)
    assert write_models(tmp_path / "live", [model]) == ["scaled"]
    assert f'load(__file__, "{app}", "scaled")' in (tmp_path / "live/scaled/1/model.py").read_text()
    write_models(tmp_path / "saved", [model], complete=True)
    application = tmp_path / "saved/scaled/1/application"
    assert f'load(__file__, "application/{app.name}", "scaled")' in (
        application.with_name("model.py").read_text()
    )
    saved = {path.relative_to(application).as_posix() for path in application.rglob("*.py")}
    package = {f"package/{name}.py" for name in ("__init__", "part", "sibling")}
    assert saved == {app.name, "helper.py", "deeper.py", *package}
    # Written again, and nothing else is removed.
    write_models(tmp_path / "saved", [model], complete=True)
    (tmp_path / "mine/scaled").mkdir(parents=True)
    with pytest.raises(SourceError, match="is none of these models"):
        write_models(tmp_path / "mine", [model], complete=True)


def test_models_of_a_file_change_each_for_itself(app: Path) -> None:
    def digests() -> tuple[str, str]:
        return fingerprint(app, "scaled", {"other"}), fingerprint(app, "other", {"scaled"})

    first = digests()
    app.write_text(APP.replace("return x\n", "return x + 1  # changed\n"))
    second = digests()
    assert (second[0] == first[0], second[1] == first[1]) == (True, False)
    app.with_name("deeper.py").write_text("VALUE = 1\n")
    third = digests()
    assert (third[0] == second[0], third[1] == second[1]) == (False, False)
    assert app.with_name("unrelated.py") not in application_files(app)


def test_onnx_files_folders_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "given/one/1").mkdir(parents=True)
    (tmp_path / "given/two/1").mkdir(parents=True)
    (tmp_path / "three.onnx").write_bytes(b"")
    sources = [tmp_path / "given", str(tmp_path / "three.onnx")]
    assert write_models(tmp_path / "live", sources) == ["one", "two", "three"]
    assert (tmp_path / "live/one").is_symlink()
    write_models(tmp_path / "saved", sources, complete=True)
    assert not (tmp_path / "saved/one").is_symlink()
    assert (tmp_path / "saved/three/1/model.onnx").is_file()
    with pytest.raises(SourceError, match="two models have the name 'one'"):
        write_models(tmp_path / "twice", [tmp_path / "given/one", tmp_path / "given"])
    with pytest.raises(SourceError, match="is no model: give a decorated function"):
        write_models(tmp_path / "none", [tmp_path / "absent"])
    with pytest.raises(SourceError, match=r"is no model: write @nereid\.model above it"):
        write_models(tmp_path / "none", [test_the_configuration])
    with pytest.raises(SourceError, match="there is no model to serve"):
        write_models(tmp_path / "none", [])


def test_a_function_may_be_several_models(app: Path) -> None:
    app.write_text(
        "import nereid\n"
        "def same(x: float) -> float:\n"
        "    return x\n"
        "one, two = (nereid.model(name=name)(same) for name in ('first', 'second'))\n"
        "unnamed = [nereid.model(name='third')(same)]\n"
    )
    module = load_file(app)
    assert place_of(module.one) == (app, "one")
    assert place_of(module.two) == (app, "two")
    assert place_of(module.unnamed[0]) is None
