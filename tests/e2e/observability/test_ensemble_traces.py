"""Trees of requests that go through several models: ensembles, and models that ask models."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.mesh.commands import say
from tests.support.mesh.mesh import running
from tests.support.mesh.traced import OTHER, SAMPLED, SHAPE, TRACE, C, E, G, S, flags
from tests.support.models import python_models
from tests.support.peers.otlp_receiver import Receiver, Tree, receiver
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

pytestmark = pytest.mark.slow


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


def test_an_ensemble_of_a_model_that_asks_an_ensemble_is_one_tree(
    tmp_path: Path, collector: Receiver
) -> None:
    repository = tmp_path / "models"
    python_models.save(repository, "caller", python_models.CALLER % 1)
    python_models.save(repository, "talk", python_models.TALK)
    cached = f"{python_models.TALK}response_cache {{ enable: true }}\n"
    python_models.save(repository, "talk", cached, "stored")
    ends = ["COMMAND STRING 1"], ["REPLY STRING 1"]
    inner = [("talk", {"COMMAND": "COMMAND"}, {"REPLY": "REPLY"})]
    outer = [
        ("caller", {"COMMAND": "COMMAND"}, {"REPLY": "m"}),
        ("stored", {"COMMAND": "m"}, {"REPLY": "REPLY"}),
    ]
    save_ensemble(repository, "inner", ensemble_config(*ends, inner))
    save_ensemble(repository, "outer", ensemble_config(*ends, outer))

    def shape(*executed: str) -> set[tuple[str, str, str]]:
        at_gateway = {each for each in SHAPE if each[0] == G}
        nested = [("outer", "InferRequest"), ("caller", "outer"), ("stored", "outer")]
        nested += [("inner", "execute"), ("talk", "inner"), ("cache lookup", "stored")]
        return {
            *at_gateway,
            *((S, name, parent) for name, parent in nested),
            (C, "lookup", "cache lookup"),
            *((S, part, name) for part in ("queue", "batch", "execute") for name in executed),
            *(each for each in SHAPE if each[0] == E),
        }

    missed = shape("caller", "talk", "stored") | {(C, "store", "cache lookup")}
    wanted = {TRACE: missed, OTHER: shape("caller", "talk")}

    def came(trace: str, trees: dict[str, Tree]) -> bool:
        return trace in trees and trees[trace].shape() == wanted[trace]

    # A machine at work shall not make a hit a miss.
    cache = ("--cache-config=local,size=1048576", "--cache-timeout-ms=5000")
    flagged = flags(collector.http_url, "mode=opentelemetry")
    with running(repository, tmp_path / "log", *cache, *flagged) as mesh:
        for trace in (TRACE, OTHER):
            parent = SAMPLED["traceparent"].replace(TRACE, trace)
            header = {"traceparent": parent, "tracestate": "a=1"}
            assert say(mesh, "exec inner echo echo done", "outer", headers=header) == "done"
            collector.wait(partial(came, trace))
    for tree in collector.trees().values():
        assert tree.roots() == [tree.one("InferRequest")]
        assert all(span.error is None for span in tree.spans)
        assert {span.state for span in tree.spans} == {"a=1"}
        # Only steps are asked for within the process.
        kinds = {name: tree.one(name).kind for name in ("outer", "inner", "caller", "talk")}
        assert kinds == {
            "outer": "server", "inner": "server", "caller": "internal", "talk": "internal",
        }  # fmt: skip
        executes = {span.parent: span for span in tree.named("execute")}
        assert tree.one("inner").parent == executes[tree.one("caller").id].id
        # Each execution has its own, within its time, give or take what clocks are read apart.
        assert {span.parent for span in tree.named("compute")} == {
            span.id for span in executes.values()
        }
