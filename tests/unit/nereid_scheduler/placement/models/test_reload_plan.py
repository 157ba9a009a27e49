"""What a reload does for each change of a repository."""

from pathlib import Path

import pytest

from nereid.model_config import parse_config
from nereid_scheduler.core.models.found_model import FoundModel
from nereid_scheduler.placement.models.catalogue import ServedVersion
from nereid_scheduler.placement.models.reload_plan import ReloadPlan, plan_reload
from tests.support.scheduler.world import served_version

CONFIG = 'name: "m" backend: "onnxruntime" max_batch_size: 4'
PATH = Path("/models/m")
LOADING, READY, FAILED = "loading", "ready", "failed"
UNLOADING, UNLOADED = "unloading", "unloaded"


def served(number: int, state: str = READY, config: str = CONFIG) -> ServedVersion:
    draft = parse_config(config, model_name="m")
    path = str(PATH / str(number))
    return served_version(number=number, state=state, path=path, draft=draft, file_digest=b"files")


def found(
    *numbers: int, config: str = CONFIG, path: Path = PATH, files: bytes = b"files"
) -> FoundModel:
    draft = parse_config(config, model_name="m")
    return FoundModel("m", path, draft, numbers, dict.fromkeys(numbers, files))


def completed(number: int) -> ServedVersion:
    version = served(number)
    version.shown = parse_config(COMPLETED + ONE, model_name="m")
    return version


COMPLETED = CONFIG + ' platform: "onnxruntime_onnx" version_policy { latest { num_versions: 1 } }'
ONE, TWO = (f' instance_group {{ name: "m" count: {count} kind: KIND_CPU }}' for count in (1, 2))
GROUPS = CONFIG + " instance_group { count: 3 }"
POLICY = CONFIG + " version_policy { all { } }"


@pytest.mark.parametrize(
    ("current", "model", "plan"),
    [
        ([], found(1, 2), ReloadPlan(load=(1, 2))),
        ([served(1)], found(1), ReloadPlan()),
        ([served(1)], found(1, files=b"others"), ReloadPlan(load=(1,))),
        ([served(1)], found(1, path=Path("/elsewhere")), ReloadPlan(load=(1,))),
        ([served(1)], found(1, config=CONFIG.replace("4", "8")), ReloadPlan(load=(1,))),
        ([served(1)], found(1, config=GROUPS), ReloadPlan(update_instances=(1,))),
        ([served(1)], found(1, config=POLICY), ReloadPlan(update_instances=(1,))),
        ([served(1, config=GROUPS)], found(1, config=GROUPS), ReloadPlan()),
        ([completed(1)], found(1), ReloadPlan()),
        ([completed(1)], found(1, config=COMPLETED + ONE), ReloadPlan()),
        ([completed(1)], found(1, config=COMPLETED + TWO), ReloadPlan(update_instances=(1,))),
        ([completed(1)], found(1, config=CONFIG + ONE), ReloadPlan(update_instances=(1,))),
        ([served(1)], found(1, config=COMPLETED + ONE), ReloadPlan(load=(1,))),
        ([served(1)], found(2), ReloadPlan(load=(2,), unload=(1,))),
        ([served(1), served(2)], found(1), ReloadPlan(unload=(2,))),
        ([served(1, LOADING)], found(1), ReloadPlan()),
        ([served(1, LOADING)], found(1, config=GROUPS), ReloadPlan(load=(1,))),
        ([served(1, FAILED)], found(1), ReloadPlan(load=(1,))),
        ([served(1, UNLOADING)], found(1), ReloadPlan(load=(1,))),
        ([served(1, UNLOADED)], found(1), ReloadPlan(load=(1,))),
        ([served(1, FAILED), served(2)], found(2), ReloadPlan(unload=(1,))),
        ([served(1, UNLOADING), served(2, UNLOADED)], found(), ReloadPlan()),
    ],
)
def test_a_reload_loads_updates_and_unloads_what_differs(
    current: list[ServedVersion], model: FoundModel, plan: ReloadPlan
) -> None:
    assert plan_reload({version.number: version for version in current}, model) == plan
