"""Data-driven graph of an ensemble: which steps a request needs, and which can run now.

A tensor may be any object; `None` stands for an optional tensor that was omitted.

A step runs when it has all inputs. If a step has several responses, each response opens a
**branch**: the steps that depend on the response run once in each branch, and also use tensors of
the branches above.

    state of a call   event                                   next state
    (none)            all inputs of the step are there        open
    open              a response that is not the last         open; a branch opens
    open              the last response, or only the end      closed

A run is finished when none of its calls is open.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nereid_scheduler.core.models.dependencies import step_model

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from nereid.pb.model_config_pb2 import ModelEnsembling

T = TypeVar("T")


class Step:
    """One step. A map consists of pairs: the name of a tensor in the model, and in the ensemble."""

    __slots__ = ("index", "input_map", "model", "output_map", "version")

    def __init__(
        self,
        index: int,
        model: str,
        version: int,
        input_map: tuple[tuple[str, str], ...],
        output_map: tuple[tuple[str, str], ...],
    ) -> None:
        self.index = index
        self.model = model
        self.version = version
        self.input_map = input_map
        self.output_map = output_map


class Plan:
    """The steps needed for certain outputs. All requests for these outputs share the plan."""

    __slots__ = ("consumers", "outputs", "steps")

    def __init__(self, steps: Sequence[Step], outputs: Collection[str]) -> None:
        """Plan for the requested `outputs` of an ensemble."""
        self.outputs = tuple(outputs)
        self.steps = _needed_steps(steps, outputs)
        self.consumers: dict[str, tuple[Step, ...]] = {}
        for step in self.steps:
            for _, tensor in step.input_map:
                self.consumers[tensor] = (*self.consumers.get(tensor, ()), step)


def steps_of(ensembling: ModelEnsembling) -> tuple[Step, ...]:
    """Return the steps of a valid configuration."""
    return tuple(
        Step(
            index,
            step_model(step),
            step.model_version,
            tuple(sorted(step.input_map.items())),
            tuple(sorted(step.output_map.items())),
        )
        for index, step in enumerate(ensembling.step)
    )


def _needed_steps(steps: Sequence[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """Return the steps that these outputs need, each with only its needed outputs."""
    needed_tensors = set(outputs)
    producers = {tensor: step for step in steps for _, tensor in step.output_map}
    pending, needed = list(outputs), set()
    while pending:
        step = producers.get(pending.pop())
        if step is None or step.index in needed:
            continue
        needed.add(step.index)
        tensors = [tensor for _, tensor in step.input_map]
        needed_tensors.update(tensors)
        pending += tensors
    return tuple(
        Step(
            step.index,
            step.model,
            step.version,
            step.input_map,
            tuple(pair for pair in step.output_map if pair[1] in needed_tensors),
        )
        for step in steps
        if step.index in needed
    )


class _Branch(Generic[T]):
    """Tensors that follow from one response to the call `source`. The root has no source."""

    __slots__ = ("children", "open_calls", "parent", "responded", "source", "started", "tensors")

    def __init__(self, source: StepCall[T] | None = None) -> None:
        self.source = source
        self.parent = None if source is None else source.branch
        self.children: list[_Branch[T]] = []
        self.tensors: dict[str, T | None] = {}
        self.started: set[int] = set()
        self.open_calls = 0
        self.responded = False

    def find_branch(self, tensor: str) -> _Branch[T] | None:
        """Return the nearest branch, from here to the root, that has this tensor (or omits it)."""
        branch: _Branch[T] | None = self
        while branch is not None and tensor not in branch.tensors:
            branch = branch.parent
        return branch

    def find_tensor(self, tensor: str) -> T | None:
        """Return the tensor from the nearest branch that has it; `None` if omitted or missing."""
        branch = self.find_branch(tensor)
        return None if branch is None else branch.tensors[tensor]

    def subtree(self) -> Iterator[_Branch[T]]:
        yield self
        for child in self.children:
            yield from child.subtree()


class StepCall(Generic[T]):
    """Call of a step. `tensors` maps the model's name for an input to the tensor."""

    __slots__ = ("branch", "open_below", "responses", "step", "tensors")

    def __init__(self, step: Step, tensors: dict[str, T], branch: _Branch[T]) -> None:
        self.step = step
        self.tensors = tensors
        self.branch = branch
        self.responses = 0
        # Number of open calls in the branches that responses to this call have opened.
        self.open_below = 0

    def ancestors(self) -> Iterator[StepCall[T]]:
        """Yield the calls whose responses opened the branches around this one, nearest first."""
        call = self.branch.source
        while call is not None:
            yield call
            call = call.branch.source


class NextActions(Generic[T]):
    """Steps to call now, and responses to send. A response has tensors in the plan's order.

    `None` stands for a tensor that is missing. A response of `None` only is still a response.
    """

    __slots__ = ("calls", "responses")

    def __init__(self) -> None:
        self.calls: list[StepCall[T]] = []
        self.responses: list[list[T | None]] = []


class GraphRun(Generic[T]):
    """One request's run: call `start` once, then `on_response` until the run is `finished`."""

    __slots__ = ("_open_calls", "_plan", "_root", "responses")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._root: _Branch[T] = _Branch()
        self._open_calls = 0
        self.responses = 0

    @property
    def finished(self) -> bool:
        """True if no call is open, so that no more responses follow."""
        return not self._open_calls

    @property
    def deadlocked(self) -> bool:
        """True if the run ended without a response, as an output was neither given nor omitted."""
        return not self._open_calls and not self.responses

    def start(self, tensors: Mapping[str, T | None]) -> NextActions[T]:
        """Begin the run. tensors: the request's inputs; an omitted optional input is `None`."""
        return self._set_tensors(self._root, tensors)

    def on_response(
        self, call: StepCall[T], outputs: Mapping[str, T] | None, *, last: bool = True
    ) -> NextActions[T]:
        """Process a response. outputs: tensors by the model's names; `None` if there are none."""
        branch = call.branch
        if last:
            self._open_calls -= 1
            branch.open_calls -= 1
            for source in call.ancestors():
                source.open_below -= 1
        if outputs is None:
            _prune(branch)
            return NextActions()
        # A single response needs no branch.
        if call.responses or not last:
            branch = _Branch(call)
            call.branch.children.append(branch)
        call.responses += 1
        tensors = {tensor: outputs.get(name) for name, tensor in call.step.output_map}
        actions = self._set_tensors(branch, tensors)
        _prune(branch)
        return actions

    def _set_tensors(self, branch: _Branch[T], tensors: Mapping[str, T | None]) -> NextActions[T]:
        branch.tensors.update(tensors)
        actions: NextActions[T] = NextActions()
        consumers, outputs = self._plan.consumers, self._plan.outputs
        for below in branch.subtree() if branch.children else (branch,):
            has_outputs = False
            for tensor in tensors:
                for step in consumers.get(tensor, ()):
                    if step.index not in below.started and _may_run(step, below):
                        actions.calls.append(self._start_call(step, below))
                has_outputs = has_outputs or tensor in outputs
            if has_outputs and not below.responded:
                self._respond_if_complete(below, actions)
        return actions

    def _start_call(self, step: Step, branch: _Branch[T]) -> StepCall[T]:
        branch.started.add(step.index)
        branch.open_calls += 1
        self._open_calls += 1
        tensors = {}
        for name, tensor in step.input_map:
            value = branch.find_tensor(tensor)
            if value is not None:
                tensors[name] = value
        call = StepCall(step, tensors, branch)
        for source in call.ancestors():
            source.open_below += 1
        return call

    def _respond_if_complete(self, branch: _Branch[T], actions: NextActions[T]) -> None:
        response: list[T | None] = []
        for tensor in self._plan.outputs:
            place = branch.find_branch(tensor)
            if place is None:
                return
            response.append(place.tensors[tensor])
        branch.responded = True
        self.responses += 1
        actions.responses.append(response)


def _may_run(step: Step, branch: _Branch[T]) -> bool:
    """Return whether a step has all inputs, and at least one of them is in this branch."""
    here = False
    for _, tensor in step.input_map:
        place = branch.find_branch(tensor)
        if place is None:
            return False
        here = here or place is branch
    return here


def _prune(branch: _Branch[T]) -> None:
    """Free a branch that is done, since a long stream opens many branches."""
    parent = branch.parent
    if parent is not None and branch.responded and not branch.open_calls and not branch.children:
        parent.children.remove(branch)
