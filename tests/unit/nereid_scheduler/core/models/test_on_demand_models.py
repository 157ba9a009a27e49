"""Models on demand, and the table of their pending loads."""

from dataclasses import replace

from nereid.core.errors import NereidError, Unavailable
from nereid_scheduler.core.models.on_demand_models import OnDemandModels, PendingLoads
from tests.support.scheduler.world import found

ON_A = {"a": {"cpu": 1}}


def test_a_model_is_tried_again_when_it_has_changed() -> None:
    models = OnDemandModels()
    models.defer(found("m"))
    model = models["m"]
    assert (model.name, model.reason) == ("m", "not in memory; the next request loads it")
    assert (model.has(-1), model.has(1), model.has(2)) == (True, True, False)
    model.error = Unavailable("no memory")
    assert model.reason == "Unavailable: no memory"
    models.defer(found("m"))
    assert model.error is not None
    models.defer(replace(found("m"), digest=b"other"))
    assert model.error is None
    assert models == {"m": model}


def test_clients_name_a_model_without_its_namespace() -> None:
    models = OnDemandModels()
    assert models.find("m") is None
    models.defer(found("one::m", namespace="one"))
    assert models.find("m") is models.find("one::m") is models["one::m"]
    assert models.find("n") is None
    models.defer(found("two::m", namespace="two"))
    assert models.find("m") is None


def test_a_load_is_pending_until_it_ends() -> None:
    pending = PendingLoads()
    load = pending.begin("m")
    assert pending.begin("m") is pending["m"] is load
    assert ("m" in pending, "n" in pending, [*pending]) == (True, False, ["m"])
    errors: list[NereidError | None] = []
    load.on_end += [errors.append, errors.append]
    error = Unavailable("no memory")
    pending.end("m", error)
    pending.end("m", None)
    assert errors == [error, error]
    assert "m" not in pending


def test_loads_wait_for_memory_in_order_of_arrival() -> None:
    pending = PendingLoads()
    for name in ("m", "n"):
        pending.await_memory(name, ON_A)
        pending[name].executor = "a"
    pending.await_memory("m", {**ON_A, "b": {"cpu": 1}})
    assert [*pending.waiting] == ["m", "n"]
    assert pending["m"].executor == "a"
    # It cannot be there any more.
    pending.await_memory("m", {})
    assert (pending["m"].executor, pending["m"].needs) == ("", {})
    pending.stop_waiting("n")
    pending.stop_waiting("n")
    assert ([*pending.waiting], pending["n"].executor) == (["m"], "")
    pending.end("m", None)
    assert not pending.waiting
    assert [*pending] == ["n"]
