"""Spaces of the models that are searched."""

from pathlib import Path

import pytest

from benchmarks.analyze_search.spaces import SPACES
from benchmarks.models import ensemble, mlp
from nereid.model_config import parse_config
from nereid.model_config.render import message_json
from nereid_analyze.space.candidate import DELAY, INSTANCES, MAX_BATCH
from nereid_analyze.space.model_settings import defaults_of


def _repository(name: str, directory: Path) -> None:
    if name == "ensemble":
        ensemble.workload(directory).write(directory, "onnxruntime")
    else:
        mlp.write_repository(directory, "onnxruntime")


@pytest.mark.parametrize("name", ["mlp", "ensemble"])
def test_the_default_is_what_the_model_has(name: str, tmp_path: Path) -> None:
    _repository(name, tmp_path)
    for setting in SPACES[name]().settings:
        text = (tmp_path / setting.model / "config.pbtxt").read_text()
        config = message_json(parse_config(text, model_name=setting.model))
        found = defaults_of(config)
        of = {INSTANCES: found.instances, MAX_BATCH: found.max_batch, DELAY: found.delay_us}
        assert setting.default == of[setting.name]
        assert setting.default in setting.values


def test_all_candidates_of_each_can_be_measured() -> None:
    assert {name: make().size for name, make in SPACES.items()} == {
        "mlp": 48,
        "python": 48,
        "ensemble": 48,
        "resnet50": 36,
    }
