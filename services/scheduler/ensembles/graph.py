"""The data-driven graph of an ensemble: which steps a request needs, and which of them may go now.

Pure: tensors that came, in; steps to run and replies to give, out. A tensor here is whatever the
owner says it is; None stands for one that was left out. Knows no model, no queue and no clock.

A step runs once its inputs are there. A step that answers several times opens a **branch** with
each answer: steps behind it run once in each of these, with what they need from before the fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from nereid.pb.model_config_pb2 import ModelEnsembling

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step. inputs and outputs: the model's name for a tensor, and the ensemble's."""

    index: int
    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


class Plan:
    """The part of an ensemble that a request for certain outputs needs; shared by such requests."""

    __slots__ = ("consumers", "outputs", "steps")

    def __init__(self, steps: Sequence[Step], outputs: Collection[str]) -> None:
        """outputs: the ensemble's tensors that are asked for."""
        self.outputs = tuple(outputs)
        self.steps = _needed(steps, outputs)
        self.consumers: dict[str, tuple[Step, ...]] = {}
        for step in self.steps:
            for _, tensor in step.inputs:
                self.consumers[tensor] = (*self.consumers.get(tensor, ()), step)


def steps_of(ensembling: ModelEnsembling) -> tuple[Step, ...]:
    """The steps of a valid configuration."""
    return tuple(
        Step(
            index,
            step.model_name,
            step.model_version,
            tuple(sorted(step.input_map.items())),
            tuple(sorted(step.output_map.items())),
        )
        for index, step in enumerate(ensembling.step)
    )


def _needed(steps: Sequence[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """The steps that lead to these outputs, each with those of its outputs that are of use."""
    wanted = set(outputs)
    writers = {tensor: step for step in steps for _, tensor in step.outputs}
    pending, needed = list(outputs), set()
    while pending:
        step = writers.get(pending.pop())
        if step is None or step.index in needed:
            continue
        needed.add(step.index)
        tensors = [tensor for _, tensor in step.inputs]
        wanted.update(tensors)
        pending += tensors
    return tuple(
        Step(
            step.index,
            step.model,
            step.version,
            step.inputs,
            tuple(pair for pair in step.outputs if pair[1] in wanted),
        )
        for step in steps
        if step.index in needed
    )


class _Branch(Generic[T]):
    """What the tensors are between two forks. source: whose answer opened it; None: the trunk."""

    __slots__ = ("calls", "children", "parent", "ran", "replied", "source", "tensors")

    def __init__(self, source: Call[T] | None = None) -> None:
        self.source = source
        self.parent = None if source is None else source.branch
        self.children: list[_Branch[T]] = []
        self.tensors: dict[str, T | None] = {}
        # The steps that have been started here, and how many of them are under way.
        self.ran: set[int] = set()
        self.calls = 0
        self.replied = False

    def find(self, tensor: str) -> _Branch[T] | None:
        """The nearest branch towards the trunk that has this tensor, be it as left out."""
        branch: _Branch[T] | None = self
        while branch is not None and tensor not in branch.tensors:
            branch = branch.parent
        return branch

    def get(self, tensor: str) -> T | None:
        branch = self.find(tensor)
        return None if branch is None else branch.tensors[tensor]

    def and_below(self) -> Iterator[_Branch[T]]:
        yield self
        for child in self.children:
            yield from child.and_below()


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A step to run; tensors: what it gets, by the model's names. Given back with its answers.

    below: how many calls are under way in the branches that its answers have opened.
    """

    step: Step
    tensors: dict[str, T]
    branch: _Branch[T]
    responses: int = 0
    below: int = 0

    def above(self) -> Iterator[Call[T]]:
        """The calls in whose branches this one is, nearest first."""
        call = self.branch.source
        while call is not None:
            yield call
            call = call.branch.source


class Moves(NamedTuple, Generic[T]):
    """What is to be done now: steps to run, and replies, their tensors in the plan's order."""

    calls: list[Call[T]]
    replies: list[list[T]]


class EnsembleRun(Generic[T]):
    """One request on its way through the graph.

    begin() once; then answered() for each answer of each call, the last one of a call with
    last=True. It is over when finished.
    """

    __slots__ = ("_open", "_plan", "_trunk", "replies")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._trunk: _Branch[T] = _Branch()
        # Calls whose last answer is not here.
        self._open = 0
        # How many there have been.
        self.replies = 0

    @property
    def finished(self) -> bool:
        """Nothing is under way, so nothing more can come."""
        return not self._open

    @property
    def stuck(self) -> bool:
        """It is over, and some output has never been written."""
        return not self._open and not self.replies

    def begin(self, tensors: Mapping[str, T | None]) -> Moves[T]:
        """The request's own tensors; None for optional ones that it leaves out."""
        return self._set(self._trunk, tensors)

    def responded(
        self, call: Call[T], outputs: Mapping[str, T] | None, *, last: bool = True
    ) -> Moves[T]:
        """A call has brought these tensors, by the model's names; None: it says only its last."""
        branch = call.branch
        if last:
            self._open -= 1
            branch.calls -= 1
            for each in call.above():
                each.below -= 1
        moves: Moves[T] = Moves([], [])
        if outputs is not None:
            # One answer and no more: no fork.
            if call.responses or not last:
                branch = _Branch(call)
                call.branch.children.append(branch)
            call.responses += 1
            tensors = {tensor: outputs.get(name) for name, tensor in call.step.outputs}
            moves = self._set(branch, tensors)
        _prune(branch)
        return moves

    def _set(self, branch: _Branch[T], tensors: Mapping[str, T | None]) -> Moves[T]:
        branch.tensors.update(tensors)
        moves: Moves[T] = Moves([], [])
        consumers, outputs = self._plan.consumers, self._plan.outputs
        for each in branch.and_below() if branch.children else (branch,):
            may_reply = False
            for tensor in tensors:
                for step in consumers.get(tensor, ()):
                    if step.index not in each.ran and _may_run(step, each):
                        moves.calls.append(self._call(step, each))
                may_reply = may_reply or tensor in outputs
            if may_reply and not each.replied:
                self._reply(each, moves)
        return moves

    def _call(self, step: Step, branch: _Branch[T]) -> Call[T]:
        branch.ran.add(step.index)
        branch.calls += 1
        self._open += 1
        tensors = {}
        for name, tensor in step.inputs:
            value = branch.get(tensor)
            if value is not None:
                tensors[name] = value
        call = Call(step, tensors, branch)
        for each in call.above():
            each.below += 1
        return call

    def _reply(self, branch: _Branch[T], moves: Moves[T]) -> None:
        reply = []
        for tensor in self._plan.outputs:
            value = branch.get(tensor)
            if value is None:
                return
            reply.append(value)
        branch.replied = True
        self.replies += 1
        moves.replies.append(reply)


def _may_run(step: Step, branch: _Branch[T]) -> bool:
    """Whether all of a step's inputs are there, and one of them is of this very branch."""
    here = False
    for _, tensor in step.inputs:
        place = branch.find(tensor)
        if place is None:
            return False
        here = here or place is branch
    return here


def _prune(branch: _Branch[T]) -> None:
    """Let go of a branch that nothing more can come of: a long stream opens many."""
    parent = branch.parent
    if parent is not None and branch.replied and not branch.calls and not branch.children:
        parent.children.remove(branch)
