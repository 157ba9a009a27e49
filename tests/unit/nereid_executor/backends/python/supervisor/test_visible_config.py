"""What Python models see of their configurations."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid_executor.backends.python.supervisor.visible_config import (
    instance_kind,
    visible_config,
)
from tests.support.executor.instances import instance


def config(text: str) -> model_config_pb2.ModelConfig:
    written = model_config_pb2.ModelConfig(name="m", backend="python")
    text_format.Parse(text, written)
    return written


@pytest.mark.parametrize(
    ("text", "gpu", "groups"),
    [
        ("", None, [("m", "KIND_CPU", 1, [])]),
        ("instance_group { kind: KIND_AUTO }", None, [("m_0", "KIND_CPU", 1, [])]),
        ("instance_group { kind: KIND_AUTO count: 2 }", 1, [("m_0", "KIND_GPU", 2, [1])]),
        ("instance_group { kind: KIND_MODEL }", None, [("m_0", "KIND_MODEL", 1, [])]),
        ('instance_group { name: "a" kind: KIND_GPU }', 0, [("a", "KIND_GPU", 1, [0])]),
        ("instance_group { kind: KIND_GPU gpus: [0, 1] }", 1, [("m_0", "KIND_GPU", 1, [0, 1])]),
        # Without a GPU there is nothing to add.
        ("instance_group { kind: KIND_GPU }", None, [("", "KIND_GPU", 0, [])]),
    ],
)
def test_groups(text: str, gpu: int | None, groups: list[object]) -> None:
    written = config(text)
    visible = visible_config(written, gpu)
    names = model_config_pb2.ModelInstanceGroup.Kind.Name
    assert [
        (each.name, names(each.kind), each.count, list(each.gpus))
        for each in visible.instance_group
    ] == groups
    assert visible.default_model_filename == "model.py"
    assert visible.version_policy.latest.num_versions == 1
    assert written == config(text)


def test_a_configuration_that_is_wrong() -> None:
    written = config("dynamic_batching { preferred_batch_size: [0] }")
    assert visible_config(written).dynamic_batching == written.dynamic_batching


@pytest.mark.parametrize(
    ("name", "gpu", "kind"),
    [("a_0", None, "CPU"), ("b_0", None, "MODEL"), ("c_1", 3, "GPU")],
)
def test_kinds(name: str, gpu: int | None, kind: str) -> None:
    groups = """
        instance_group { name: "a" kind: KIND_CPU }
        instance_group { name: "b" kind: KIND_MODEL }
        instance_group { name: "c" kind: KIND_GPU gpus: [3] }
    """
    assert instance_kind(instance(groups, name=name, gpu=gpu)) == kind
