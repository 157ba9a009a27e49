"""Search for what traffic names and its model lacks: versions, and the tensor with the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.traffic.weights import TENSOR

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nereid.core.traffic.weights import Traffic
    from nereid.pb.model_config_pb2 import ModelConfig


def find_mismatches(
    traffic: Traffic,
    inputs: Mapping[int, Collection[str] | None],
    config: ModelConfig | None = None,
) -> tuple[str, ...]:
    """Return what people should know of traffic that its model cannot have as it is.

    inputs: names of the inputs by version that is served; `None` if they are not known. config: of
    a version that is served, if it is known.
    """
    weighted = [version for version, weight in traffic.weights if weight]
    served = ", ".join(map(str, sorted(inputs)))
    found = [
        f"version {version} has a weight but is not served (served: {served}): it has to be in"
        " the repository and in version_policy"
        for version in weighted
        if version not in inputs
    ]
    if not found and config is not None and config.version_policy.latest.num_versions == 1:
        found.append(
            "version_policy keeps the latest version alone: the next one takes all requests when it"
            " is loaded"
        )
    if traffic.kind == TENSOR:
        for version in weighted:
            names = inputs.get(version)
            if names is not None and traffic.name not in names:
                found.append(
                    f"version {version} has no input '{traffic.name}' (it has"
                    f" {', '.join(sorted(names))}): its callers are not kept together"
                )
    return tuple(found)
