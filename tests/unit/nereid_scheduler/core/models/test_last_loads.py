"""Results of the models' last loads."""

from dataclasses import replace

from nereid_scheduler.core.models.last_loads import LastLoads
from tests.support.scheduler.world import found


def test_files_that_a_load_writes_count_as_loaded() -> None:
    loads, model = LastLoads(), found("m")
    written = replace(model, digest=b"written")
    loads.on_files_written(model, written)
    assert loads.has_changed(written)
    loads.begin(model)
    loads.on_files_written(model, written)
    assert not loads.has_changed(written)
    assert loads.has_changed(model)
