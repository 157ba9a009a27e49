"""An instance's states; its serving is tested over sockets (tests/integration/executor)."""

from __future__ import annotations

from nereid_executor.instances.instance_state import TRANSITIONS, InstanceState


def test_every_state_but_the_last_has_successors() -> None:
    assert TRANSITIONS.keys() == set(InstanceState) - {InstanceState.STOPPED}
    reachable = set().union(*TRANSITIONS.values())
    assert reachable == set(InstanceState) - {InstanceState.LOADING, InstanceState.STOPPED}
