"""The difference of a version that is a shadow, for the rules of its rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid_scheduler.control.rollouts.steps import Difference

if TYPE_CHECKING:
    from nereid_scheduler.control.rollouts.rollouts import FindDifference
    from nereid_scheduler.control.sources.model_traffic import ModelTraffic


def shadow_difference(traffic: ModelTraffic) -> FindDifference:
    """Return the function that finds how many responses of a version differ."""

    def find(name: str, version: int) -> Difference | None:
        counts = traffic.compared_with(name, version)
        return None if counts is None else Difference(*counts)

    return find
