"""Which executors the requests that wait need."""

from types import SimpleNamespace
from typing import Any, cast

from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid_scheduler.core.requests.load_queue import HeldRequest
from nereid_scheduler.pages.waiting_requests import waiting_by_device
from nereid_scheduler.placement.models.catalogue import Catalogue, ServedModel, ServedVersion

GPU = "instance_group { kind: KIND_GPU }"
CPU = "instance_group { kind: KIND_CPU }"
ENSEMBLE = 'platform: "ensemble" ensemble_scheduling { %s }'


def served(name: str, text: str, pending: int | None = None) -> ServedModel:
    """pending: of the version's runtime; None: it has never been loaded."""
    draft = text_format.Parse(text, model_config_pb2.ModelConfig(name=name))
    version = ServedVersion(name, 1, "/nowhere", draft)
    if pending is not None:
        config = SimpleNamespace(proto=draft)
        version.runtime = cast(
            "Any", SimpleNamespace(config=config, dispatcher=SimpleNamespace(pending=pending))
        )
    return ServedModel(name, {1: version})


def held(*names: str) -> list[HeldRequest]:
    return [cast("HeldRequest", SimpleNamespace(name=name, version="")) for name in names]


def steps(*names: str) -> str:
    return ENSEMBLE % " ".join(f'step {{ model_name: "{name}" }}' for name in names)


def test_queued_requests_count_for_what_their_model_may_be_on() -> None:
    catalogue = Catalogue(
        [served("a", GPU, 2), served("b", CPU, 3), served("c", "", 4), served("d", GPU, 5)]
    )
    catalogue.set_model(served("idle", CPU, 0))
    assert waiting_by_device(catalogue, held()) == {"gpu": 7, "cpu": 3, "any": 4}


def test_held_requests_count_as_well() -> None:
    catalogue = Catalogue([served("a", GPU), served("b", CPU, 1)])
    assert waiting_by_device(catalogue, held("a", "a", "b")) == {"gpu": 2, "cpu": 2}


def test_a_request_for_a_model_that_is_yet_to_be_found_may_need_anything() -> None:
    assert waiting_by_device(Catalogue(), held("unknown")) == {"any": 1}


def test_an_ensemble_needs_what_its_models_need() -> None:
    catalogue = Catalogue(
        [
            served("a", GPU),
            served("b", CPU),
            served("inner", steps("a", "b")),
            served("outer", steps("b", "inner", "b")),
        ]
    )
    assert waiting_by_device(catalogue, held("outer", "outer")) == {"gpu": 2, "cpu": 2}


def test_a_circular_ensemble_ends() -> None:
    catalogue = Catalogue([served("one", steps("two")), served("two", steps("one"))])
    assert waiting_by_device(catalogue, held("one")) == {"any": 1}
