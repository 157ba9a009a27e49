"""The repository index while a store is slow."""

from __future__ import annotations

import threading

from nereid.pb import kserve_pb2
from nereid.services.scheduler.models.catalogue import Catalogue
from nereid.services.scheduler.models.config_completion import CompletionRules
from nereid.services.scheduler.models.load_rules import LoadRules
from nereid.services.scheduler.models.loader import Loader
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.reconciler.desired_models import DesiredModels
from nereid.services.scheduler.reconciler.reconciler import Reconciler, Sources
from nereid.services.scheduler.reconciler.rules import ModelControlRules
from nereid.services.scheduler.repository.model_control import ModelControl
from nereid.services.scheduler.repository.repositories import Repositories
from nereid.services.scheduler.repository.stored_repository import StoredRepository
from tests.support.object_stores.memory_store import MemoryFiles

URL = "s3://b/models"


def control_of(files: MemoryFiles) -> ModelControl:
    repositories = Repositories([URL], stored={URL: StoredRepository(files.open_store(URL))})
    rules, sources = ModelControlRules(), Sources()
    desired = DesiredModels()
    catalogue = Catalogue(desired=desired)
    load_rules = LoadRules(
        CompletionRules(disabled=False, backend_settings=lambda _: {}), lambda _: {}, QueueLimits()
    )
    loader = Loader(load_rules, lambda: None, catalogue)
    reconciler = Reconciler(desired, catalogue, loader, repositories, rules, sources)
    return ModelControl(
        repositories, catalogue, desired, reconciler, rules, sources, listing_limit_s=0.01
    )


def shown(index: kserve_pb2.RepositoryIndexResponse) -> dict[str, str]:
    return {each.name: each.reason for each in index.models}


async def test_a_slow_listing_is_not_waited_for() -> None:
    files = MemoryFiles({"b/models/m/1/data": b""})
    control = control_of(files)
    assert shown(await control.index(ready_only=False)) == {"m": ""}
    goes_on, lists = threading.Event(), files.lists

    def wait() -> None:
        goes_on.wait()

    files.before_list = wait
    files.objects["b/models/n/1/data"] = b""
    for _ in range(3):
        assert shown(await control.index(ready_only=False)) == {
            "m": "listing the repository takes long: this is how it was before"
        }
    assert files.lists == lists + 1
    goes_on.set()
    while "n" not in (seen := shown(await control.index(ready_only=False))):
        pass
    assert seen == {"m": "", "n": ""}
