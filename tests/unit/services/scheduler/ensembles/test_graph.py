"""The graph of ensembles: which steps run when, with what, and what replies come of it."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid.services.scheduler.ensembles.graph import Call, EnsembleRun, Moves, Plan, steps_of
from tests.support.scheduler.ensembles import Step, ensemble_config

# Each step's model is a name of its own, so that calls can be told apart by it.
CHAIN: list[Step] = [("a", {"I": "x"}, {"O": "m"}), ("b", {"I": "m"}, {"O": "y"})]
DIAMOND: list[Step] = [
    ("join", {"L": "l", "R": "r"}, {"O": "y"}),
    ("left", {"I": "x"}, {"O": "l"}),
    ("right", {"I": "x"}, {"O": "r"}),
]
TWO_OUTPUTS: list[Step] = [
    ("a", {"I": "x"}, {"O": "y", "P": "p"}),
    ("b", {"I": "p"}, {"O": "z"}),
]


class Run:
    """One request; tensors are texts that tell how they were made."""

    def __init__(self, steps: list[Step], outputs: str, **tensors: str | None) -> None:
        config = model_config_pb2.ModelConfig()
        text_format.Parse(ensemble_config(["x"], ["y"], steps), config)
        self.plan = Plan(steps_of(config.ensemble_scheduling), outputs.split())
        self.run: EnsembleRun[str] = EnsembleRun(self.plan)
        self.calls: dict[str, Call[str]] = {}
        self.replies: list[list[str]] = []
        self._take(self.run.begin(tensors or {"x": "x"}))

    def _take(self, moves: Moves[str]) -> None:
        for call in moves.calls:
            assert call.step.model not in self.calls
            self.calls[call.step.model] = call
        self.replies += moves.replies

    def response(self, model: str, *outputs: str, last: bool = True, **values: str) -> None:
        """Answer a call: outputs that say what they were made of, or certain values."""
        call = self.calls[model]
        if last:
            del self.calls[model]
        made = {each: f"{model}({','.join(call.tensors.values())})" for each in outputs or "O"}
        self._take(self.run.responded(call, {**made, **values}, last=last))

    def end(self, model: str) -> None:
        """The call's last answer, which brings nothing."""
        self._take(self.run.responded(self.calls.pop(model), None))


def test_a_chain() -> None:
    run = Run(CHAIN, "y")
    assert list(run.calls) == ["a"]
    assert run.calls["a"].tensors == {"I": "x"}
    run.response("a")
    assert list(run.calls) == ["b"]
    assert not run.replies
    assert not run.run.finished
    run.response("b")
    assert run.replies == [["b(a(x))"]]
    assert run.run.finished
    assert not run.run.stuck


@pytest.mark.parametrize("order", ["left right", "right left"])
def test_a_step_waits_for_all_of_its_inputs(order: str) -> None:
    run = Run(DIAMOND, "y")
    first, second = order.split()
    assert set(run.calls) == {"left", "right"}
    run.response(first)
    assert set(run.calls) == {second}
    run.response(second)
    assert set(run.calls) == {"join"}
    run.response("join")
    assert run.replies == [["join(left(x),right(x))"]]


@pytest.mark.parametrize(
    ("outputs", "models", "of_a"),
    [
        ("y", {"a"}, {"O"}),
        ("z", {"a", "b"}, {"P"}),
        ("z y", {"a", "b"}, {"O", "P"}),
    ],
)
def test_only_what_leads_to_the_wanted_outputs_is_done(
    outputs: str, models: set[str], of_a: set[str]
) -> None:
    run = Run(TWO_OUTPUTS, outputs)
    assert {step.model for step in run.plan.steps} == models
    assert {name for name, _ in run.calls["a"].step.outputs} == of_a
    run.response("a", *sorted(of_a))
    if "b" in models:
        run.response("b")
    made = {"y": "a(x)", "z": "b(a(x))"}
    assert run.replies == [[made[name] for name in outputs.split()]]
    assert run.run.finished


def test_what_is_left_out_counts_as_there_and_is_left_out_again() -> None:
    steps: list[Step] = [("a", {"I": "x", "J": "w"}, {"O": "y"})]
    run = Run(steps, "y", x="x", w=None)
    assert run.calls["a"].tensors == {"I": "x"}


def test_an_output_that_a_model_did_not_give_is_left_out_of_the_next_step() -> None:
    run = Run(TWO_OUTPUTS, "z")
    run.response("a", "Q")
    assert run.calls["b"].tensors == {}


def test_a_missing_output_of_the_ensemble_is_the_end() -> None:
    run = Run(CHAIN, "y")
    run.response("a")
    assert not run.run.stuck
    run.response("b", "Q")
    assert run.run.stuck
    assert run.replies == []


def test_a_step_that_needs_nothing_that_comes_does_not_run() -> None:
    steps: list[Step] = [*CHAIN, ("c", {"I": "y", "J": "never"}, {"O": "z"})]
    run = Run(steps, "y z")
    run.response("a")
    run.response("b")
    assert run.run.stuck


def test_each_response_of_a_model_opens_a_branch() -> None:
    run = Run(CHAIN, "y")
    run.response("a", last=False, O="1")
    first = run.calls.pop("b")
    run.response("a", last=False, O="2")
    second = run.calls.pop("b")
    run.end("a")
    assert (first.tensors, second.tensors) == ({"I": "1"}, {"I": "2"})
    run.calls["b"] = second
    run.response("b")
    assert not run.run.finished
    run.calls["b"] = first
    run.response("b")
    assert run.replies == [["b(2)"], ["b(1)"]]
    assert run.run.finished


def test_the_last_of_several_responses_is_a_branch_too() -> None:
    run = Run(CHAIN[:1], "m")
    run.response("a", last=False, O="1")
    run.response("a", O="2")
    assert run.replies == [["1"], ["2"]]
    assert run.run.finished
    assert run.run.replies == 2


def test_no_response_is_no_reply() -> None:
    run = Run(CHAIN, "y")
    run.end("a")
    assert run.run.finished
    assert run.run.stuck
    assert not run.replies


def test_branches_branch_again_and_keep_what_was_before() -> None:
    steps: list[Step] = [
        ("a", {"I": "x"}, {"O": "m"}),
        ("b", {"I": "m"}, {"O": "n"}),
        ("c", {"I": "n", "J": "m"}, {"O": "y"}),
    ]
    run = Run(steps, "y m")
    run.response("a", last=False, O="1")
    run.response("b", last=False, O="p")
    run.response("c")
    run.response("b", O="q")
    run.response("c")
    run.end("a")
    assert run.replies == [["c(p,1)", "1"], ["c(q,1)", "1"]]
    assert run.run.finished


def test_what_comes_after_a_fork_from_elsewhere_reaches_every_branch() -> None:
    steps: list[Step] = [
        ("many", {"I": "x"}, {"O": "m"}),
        ("late", {"I": "x"}, {"O": "l"}),
        ("join", {"I": "m", "J": "l"}, {"O": "y"}),
    ]
    run = Run(steps, "y")
    run.response("many", last=False, O="1")
    assert "join" not in run.calls
    run.response("late", O="l")
    assert run.calls["join"].tensors == {"I": "1", "J": "l"}
    run.response("join")
    run.response("many", O="2")
    run.response("join")
    assert run.replies == [["join(1,l)"], ["join(2,l)"]]


def test_a_long_stream_leaves_nothing_behind() -> None:
    run = Run(CHAIN, "y")
    trunk = run.calls["a"].branch
    for number in range(100):
        run.response("a", last=False, O=str(number))
        run.response("b")
    assert len(run.replies) == 100
    assert not trunk.children
