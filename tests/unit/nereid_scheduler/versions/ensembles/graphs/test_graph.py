"""The graph of ensembles: which steps run when, on which tensors, and the responses."""

import pytest
from google.protobuf import text_format

from nereid.pb import model_config_pb2
from nereid_scheduler.versions.ensembles.graphs.graph import (
    GraphRun,
    NextActions,
    Plan,
    StepCall,
    steps_of,
)
from tests.support.scheduler.ensemble_configs import Step, ensemble_config

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
    """One request; tensors are texts that show how they were made."""

    def __init__(self, steps: list[Step], outputs: str, **tensors: str | None) -> None:
        config = model_config_pb2.ModelConfig()
        text_format.Parse(ensemble_config(["x"], ["y"], steps), config)
        self.plan = Plan(steps_of(config), outputs.split())
        self.run: GraphRun[str] = GraphRun(self.plan)
        self.calls: dict[str, StepCall[str]] = {}
        self.responses: list[list[str | None]] = []
        self._record_actions(self.run.start(tensors or {"x": "x"}))

    def _record_actions(self, actions: NextActions[str]) -> None:
        for call in actions.calls:
            assert call.step.model not in self.calls
            self.calls[call.step.model] = call
        self.responses += actions.responses

    def response(self, model: str, *outputs: str, last: bool = True, **values: str) -> None:
        """Respond to a call: with outputs that show how they were made, or with these values."""
        call = self.calls[model]
        if last:
            del self.calls[model]
        made = {each: f"{model}({','.join(call.tensors.values())})" for each in outputs or "O"}
        self._record_actions(self.run.on_response(call, {**made, **values}, last=last))

    def end(self, model: str) -> None:
        """End a call without another response."""
        self._record_actions(self.run.on_response(self.calls.pop(model), None))


def test_a_chain() -> None:
    run = Run(CHAIN, "y")
    assert list(run.calls) == ["a"]
    assert run.calls["a"].tensors == {"I": "x"}
    run.response("a")
    assert list(run.calls) == ["b"]
    assert not run.responses
    assert not run.run.finished
    run.response("b")
    assert run.responses == [["b(a(x))"]]
    assert run.run.finished
    assert not run.run.deadlocked


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
    assert run.responses == [["join(left(x),right(x))"]]


@pytest.mark.parametrize(
    ("outputs", "models", "of_a"),
    [
        ("y", {"a"}, {"O"}),
        ("z", {"a", "b"}, {"P"}),
        ("z y", {"a", "b"}, {"O", "P"}),
    ],
)
def test_only_the_steps_for_the_requested_outputs_run(
    outputs: str, models: set[str], of_a: set[str]
) -> None:
    run = Run(TWO_OUTPUTS, outputs)
    assert {step.model for step in run.plan.steps} == models
    assert {name for name, _ in run.calls["a"].step.output_map} == of_a
    run.response("a", *sorted(of_a))
    if "b" in models:
        run.response("b")
    made = {"y": "a(x)", "z": "b(a(x))"}
    assert run.responses == [[made[name] for name in outputs.split()]]
    assert run.run.finished


def test_an_omitted_tensor_counts_as_there_and_is_omitted_in_the_step() -> None:
    steps: list[Step] = [("a", {"I": "x", "J": "w"}, {"O": "y"})]
    run = Run(steps, "y", x="x", w=None)
    assert run.calls["a"].tensors == {"I": "x"}


def test_an_output_that_a_model_did_not_make_is_omitted_in_the_next_step() -> None:
    run = Run(TWO_OUTPUTS, "z")
    run.response("a", "Q")
    assert run.calls["b"].tensors == {}


def test_a_response_without_any_output_is_a_response() -> None:
    run = Run(CHAIN, "y")
    run.response("a")
    assert not run.responses
    run.response("b", "Q")
    assert run.responses == [[None]]
    assert run.run.finished
    assert not run.run.deadlocked


def test_each_of_several_responses_without_outputs_is_one() -> None:
    run = Run(CHAIN, "y")
    for _ in range(2):
        run.response("a", "Q", last=False)
        assert run.calls["b"].tensors == {}
        run.response("b", "Q")
    run.end("a")
    assert run.responses == [[None], [None]]
    assert run.run.finished


def test_outputs_that_are_not_given_are_left_out_beside_others() -> None:
    run = Run(TWO_OUTPUTS, "y z")
    run.response("a", "O")
    assert run.calls["b"].tensors == {}
    assert not run.responses
    run.response("b")
    assert run.responses == [["a(x)", "b()"]]
    run = Run(TWO_OUTPUTS, "y z")
    run.response("a", "P")
    run.response("b")
    assert run.responses == [[None, "b(a(x))"]]
    assert run.run.finished
    assert not run.run.deadlocked
    # An optional input of the ensemble that is an output as well.
    run = Run(CHAIN[:1], "m w", x="x", w=None)
    run.response("a")
    assert run.responses == [["a(x)", None]]


def test_a_step_whose_inputs_never_come_does_not_run() -> None:
    steps: list[Step] = [*CHAIN, ("c", {"I": "y", "J": "never"}, {"O": "z"})]
    run = Run(steps, "y z")
    run.response("a")
    run.response("b")
    assert run.run.deadlocked


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
    assert run.responses == [["b(2)"], ["b(1)"]]
    assert run.run.finished


def test_the_last_of_several_responses_is_a_branch_too() -> None:
    run = Run(CHAIN[:1], "m")
    run.response("a", last=False, O="1")
    run.response("a", O="2")
    assert run.responses == [["1"], ["2"]]
    assert run.run.finished
    assert run.run.responses == 2


def test_a_step_without_a_response_gives_none() -> None:
    run = Run(CHAIN, "y")
    run.end("a")
    assert run.run.finished
    assert run.run.deadlocked
    assert not run.responses


def test_branches_branch_again_and_keep_the_tensors_above() -> None:
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
    assert run.responses == [["c(p,1)", "1"], ["c(q,1)", "1"]]
    assert run.run.finished


def test_a_tensor_that_comes_after_a_fork_reaches_every_branch() -> None:
    steps: list[Step] = [
        ("many", {"I": "x"}, {"O": "m"}),
        ("slow", {"I": "x"}, {"O": "l"}),
        ("join", {"I": "m", "J": "l"}, {"O": "y"}),
    ]
    run = Run(steps, "y")
    run.response("many", last=False, O="1")
    assert "join" not in run.calls
    run.response("slow", O="l")
    assert run.calls["join"].tensors == {"I": "1", "J": "l"}
    run.response("join")
    run.response("many", O="2")
    run.response("join")
    assert run.responses == [["join(1,l)"], ["join(2,l)"]]


def test_a_long_stream_leaves_nothing_behind() -> None:
    run = Run(CHAIN, "y")
    root = run.calls["a"].branch
    for number in range(100):
        run.response("a", last=False, O=str(number))
        run.response("b")
    assert len(run.responses) == 100
    assert not root.children
