"""Which instances may stand for each other."""

from __future__ import annotations

from typing import Any

from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.takeover.kept_instances import InstanceContent, model_of


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
