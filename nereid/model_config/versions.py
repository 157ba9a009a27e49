"""Selection of the versions of a model, by the model's version policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.pb.model_config_pb2 import ModelVersionPolicy


def select_versions(policy: ModelVersionPolicy, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions to serve, ascending; as in Triton, skip those that do not exist."""
    versions = sorted(set(available))
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return tuple(versions)
    if choice == "specific":
        wanted = set(policy.specific.versions)
        return tuple(version for version in versions if version in wanted)
    count = policy.latest.num_versions if choice == "latest" else 1
    return tuple(versions[max(len(versions) - count, 0) :])
