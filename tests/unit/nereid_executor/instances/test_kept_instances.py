"""Which instances may stand for each other, and which make way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from nereid.pb import nereid_pb2 as pb
from nereid_executor.instances.kept_instances import (
    InstanceContent,
    KeptInstances,
    model_of,
)


def content(**fields: Any) -> InstanceContent:
    load = pb.LoadInstance(instance_name="m_0", version=1, version_path="/m/1")
    load.config.name = "m"
    for key in "abcdefgh":
        load.backend_settings[key] = key
        load.config.parameters[key].string_value = key
    load.MergeFrom(pb.LoadInstance(**fields))
    return InstanceContent.of_command(load)


def test_who_asks_does_not_matter() -> None:
    asked = content(instance=7, scheduler="b", epoch=5, shm_namespace="x", kept_bytes={"cpu": 3})
    assert asked == content()
    assert asked.place == ("m", 1, 0, 0)


def test_all_else_does() -> None:
    others = [
        content(device_id=1),
        content(version=2),
        content(version_path="/n/1"),
        content(backend_settings={"a": "z"}),
        content(config={"max_batch_size": 4}),
    ]
    assert all(each.command != content().command for each in others)
    assert all(each.nameless != content().nameless for each in others)
    named = content(instance_name="m_1")
    assert named.command != content().command
    assert named.nameless == content().nameless


def test_names_in_the_mesh() -> None:
    load = pb.LoadInstance()
    load.config.name = "m"
    assert model_of(load) == "m"
    load.model = "namespace::m"
    assert model_of(load) == "namespace::m"


@dataclass(eq=False)
class Instance:
    """As much of an Instance as is looked at."""

    batches: int = 0
    memory: dict[str, int] = field(default_factory=dict)


@pytest.fixture
async def kept() -> AsyncIterator[KeptInstances]:
    made = KeptInstances(60.0, lambda: True)
    yield made
    made.close()


def keep(kept: KeptInstances, content: InstanceContent, *args: Any) -> Any:
    instance: Any = Instance(*args)
    kept.add(instance, content)
    return instance


async def test_one_with_the_same_content_is_taken_once(kept: KeptInstances) -> None:
    first, second = keep(kept, content()), keep(kept, content())
    assert kept.take(content(version=2)) is None
    assert [kept.take(content()) for _ in range(3)] == [first, second, None]


async def test_what_is_asked_for_in_its_place_makes_others_obsolete(kept: KeptInstances) -> None:
    named, other_place = keep(kept, content(instance_name="m_1")), keep(kept, content(version=2))
    old = keep(kept, content(backend_settings={"a": "z"}))
    assert kept.take_obsolete(content()) == [old]
    assert kept.take_all() == [named, other_place]
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("limits", "excess"),
    [
        ({}, ""),
        ({"cpu": 60}, ""),
        # The one that has executed least.
        ({"cpu": 59}, "b"),
        ({"cpu": 20}, "ba"),
        ({"gpu 0": 6, "cpu": 60}, "c"),
        ({"gpu 0": 0, "cpu": 0}, "bac"),
    ],
)
async def test_those_beyond_a_limit_make_way(
    kept: KeptInstances, limits: dict[str, int], excess: str
) -> None:
    instances = {
        "a": keep(kept, content(), 5, {"cpu": 30}),
        "b": keep(kept, content(), 1, {"cpu": 20}),
        "c": keep(kept, content(), 9, {"cpu": 10, "gpu 0": 7}),
    }
    assert kept.take_excess(limits) == [instances[name] for name in excess]
    assert len(kept) == 3 - len(excess)
