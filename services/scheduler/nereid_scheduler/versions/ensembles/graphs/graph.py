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

A step with a condition is skipped if the condition's tensor says so. A tensor whose steps are all
skipped gets its default, or is **missing**: steps that need it are skipped as well. If the rows of
a request disagree, the request is **divided** into parts, branches with some of the rows: each
remaining step runs once in each part, and outputs are joined at the end.
"""

# layout: compiled

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from nereid.model_config.conditions import read_conditions
from nereid_scheduler.core.models.dependencies import step_model

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from nereid.model_config.conditions import Condition
    from nereid.pb.model_config_pb2 import ModelConfig

T = TypeVar("T")


class Rows(Protocol[T]):
    """Operations on tensors that a run with conditions needs; each may raise NereidError."""

    def read(self, name: str, tensor: T | None) -> Sequence[float]:
        """Return the value of each row of a condition's tensor, or one value for all rows."""

    def default(self, name: str, rows: Sequence[int] | None) -> T:
        """Return the default of a tensor, for these rows; `None` means all."""

    def select(self, tensor: T, rows: Sequence[int]) -> T:
        """Return the tensor with only these rows."""

    def join(self, name: str, parts: Sequence[tuple[Sequence[int], T | None]]) -> T | None:
        """Return an output whose rows lie in several parts."""


class Step:
    """One step. A map consists of pairs: the name of a tensor in the model, and in the ensemble."""

    __slots__ = ("condition", "index", "input_map", "model", "output_map", "version")

    def __init__(  # noqa: PLR0913, PLR0917 - what a configuration says of a step
        self,
        index: int,
        model: str,
        version: int,
        input_map: tuple[tuple[str, str], ...],
        output_map: tuple[tuple[str, str], ...],
        condition: Condition | None = None,
    ) -> None:
        self.index = index
        self.model = model
        self.version = version
        self.input_map = input_map
        self.output_map = output_map
        self.condition = condition

    def needs(self) -> Iterator[str]:
        """Yield the tensors without which the step cannot run."""
        if self.condition is not None:
            yield self.condition.tensor
        for _, tensor in self.input_map:
            yield tensor


class Plan:
    """The steps needed for certain outputs. All requests for these outputs share the plan."""

    __slots__ = ("conditioned", "consumers", "defaults", "outputs", "producers", "steps")

    def __init__(
        self, steps: Sequence[Step], outputs: Collection[str], defaults: Collection[str] = ()
    ) -> None:
        """Plan for the requested `outputs` of an ensemble. defaults: tensors that have one."""
        self.outputs = tuple(outputs)
        self.steps = _needed_steps(steps, outputs)
        self.defaults = frozenset(defaults)
        # By tensor: the steps that read it (twice if it is two inputs), that make it, and whose
        # conditions read it.
        self.consumers: dict[str, tuple[Step, ...]] = {}
        self.producers: dict[str, tuple[Step, ...]] = {}
        self.conditioned: dict[str, tuple[Step, ...]] = {}
        for step in self.steps:
            for _, tensor in step.input_map:
                self.consumers[tensor] = (*self.consumers.get(tensor, ()), step)
            for _, tensor in step.output_map:
                self.producers[tensor] = (*self.producers.get(tensor, ()), step)
            if step.condition is not None:
                tensor = step.condition.tensor
                self.conditioned[tensor] = (*self.conditioned.get(tensor, ()), step)


def steps_of(config: ModelConfig) -> tuple[Step, ...]:
    """Return the steps of a valid configuration."""
    conditions = read_conditions(config)
    return tuple(
        Step(
            index,
            step_model(step),
            step.model_version,
            tuple(sorted(step.input_map.items())),
            tuple(sorted(step.output_map.items())),
            conditions.get(index),
        )
        for index, step in enumerate(config.ensemble_scheduling.step)
    )


def _needed_steps(steps: Sequence[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """Return the steps that these outputs need, each with only its needed outputs."""
    needed_tensors = set(outputs)
    producers: dict[str, list[Step]] = {}
    for step in steps:
        for _, tensor in step.output_map:
            producers.setdefault(tensor, []).append(step)
    pending, needed = list(outputs), set()
    while pending:
        for step in producers.get(pending.pop(), ()):
            if step.index not in needed:
                needed.add(step.index)
                tensors = list(step.needs())
                needed_tensors.update(tensors)
                pending += tensors
    return tuple(
        Step(
            step.index,
            step.model,
            step.version,
            step.input_map,
            tuple(pair for pair in step.output_map if pair[1] in needed_tensors),
            step.condition,
        )
        for step in steps
        if step.index in needed
    )


class _Branch(Generic[T]):
    """Tensors that follow from one response to the call `source`. The root has no source.

    A part of a divided request is a branch with `rows`, those of the request; its parent is the
    root, or the part that was divided again.
    """

    __slots__ = (
        "children",
        "divided",
        "missing",
        "open_calls",
        "parent",
        "responded",
        "rows",
        "skipped",
        "source",
        "started",
        "tensors",
    )

    def __init__(
        self,
        source: StepCall[T] | None = None,
        parent: _Branch[T] | None = None,
        rows: tuple[int, ...] | None = None,
    ) -> None:
        self.source = source
        self.parent = parent
        self.rows = rows
        self.children: list[_Branch[T]] = []
        self.tensors: dict[str, T | None] = {}
        # Tensors that no step makes, since all that would are skipped.
        self.missing: set[str] = set()
        self.started: set[int] = set()
        self.skipped: set[int] = set()
        self.open_calls = 0
        self.responded = False
        self.divided = False

    def find_branch(self, tensor: str) -> _Branch[T] | None:
        """Return the nearest branch, from here to the root, that has this tensor (or omits it)."""
        branch: _Branch[T] | None = self
        while branch is not None and tensor not in branch.tensors:
            branch = branch.parent
        return branch

    def is_missing(self, tensor: str) -> bool:
        """Return whether no step will make the tensor, here and in the branches above."""
        branch: _Branch[T] | None = self
        while branch is not None and tensor not in branch.missing:
            branch = branch.parent
        return branch is not None

    def is_skipped(self, step: Step) -> bool:
        """Return whether a step is skipped, here or in a branch above."""
        branch: _Branch[T] | None = self
        while branch is not None and step.index not in branch.skipped:
            branch = branch.parent
        return branch is not None

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

    @property
    def is_repeated(self) -> bool:
        """True if another part of the request may call the step as well."""
        return self.branch.rows is not None

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

    __slots__ = ("calls", "released", "responses", "skipped")

    def __init__(self) -> None:
        self.calls: list[StepCall[T]] = []
        self.responses: list[list[T | None]] = []
        # Steps that are skipped. A tensor is released once for each skipped step that would have
        # read it, and once after conditions have read it.
        self.skipped: list[Step] = []
        self.released: list[T] = []


class GraphRun(Generic[T]):
    """One request's run: call `start` once, then `on_response` until the run is `finished`."""

    __slots__ = ("_open_calls", "_plan", "_root", "_rows", "responses")

    def __init__(self, plan: Plan, rows: Rows[T] | None = None) -> None:
        """rows: may be `None` for a plan without conditions."""
        self._plan = plan
        self._rows = rows
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
            branch = _Branch(call, call.branch)
            call.branch.children.append(branch)
        call.responses += 1
        tensors = {tensor: outputs.get(name) for name, tensor in call.step.output_map}
        actions = self._set_tensors(branch, tensors)
        _prune(branch)
        return actions

    def _set_tensors(self, branch: _Branch[T], tensors: Mapping[str, T | None]) -> NextActions[T]:
        branch.tensors.update(tensors)
        actions: NextActions[T] = NextActions()
        # A list, since a branch may be divided meanwhile.
        for below in list(branch.subtree()) if branch.children else (branch,):
            if not below.divided:
                self._proceed(below, list(tensors), actions)
        return actions

    def _proceed(self, branch: _Branch[T], tensors: list[str], actions: NextActions[T]) -> None:
        """Skip and call steps in one branch, after these tensors were set."""
        plan = self._plan
        if plan.conditioned and not self._evaluate(branch, tensors, actions):
            return
        has_outputs = False
        for tensor in tensors:
            for step in plan.consumers.get(tensor, ()):
                self._call_if_ready(step, branch, actions)
            for step in plan.conditioned.get(tensor, ()):
                self._call_if_ready(step, branch, actions)
            has_outputs = has_outputs or tensor in plan.outputs
        if has_outputs and not branch.responded:
            self._respond_if_complete(branch, actions)

    def _call_if_ready(self, step: Step, branch: _Branch[T], actions: NextActions[T]) -> None:
        if step.index not in branch.started and _may_run(step, branch):
            actions.calls.append(self._start_call(step, branch))

    # ---- conditions

    def _evaluate(self, branch: _Branch[T], tensors: list[str], actions: NextActions[T]) -> bool:
        """Skip steps; append the tensors that are then missing, or that have their default.

        Return False if the branch was divided, and its parts have proceeded.
        """
        plan, rows = self._plan, self._rows
        assert rows is not None, "a run with conditions that has no access to rows"
        for tensor in tensors:
            conditioned = plan.conditioned.get(tensor, ())
            if branch.is_missing(tensor):
                for step in (*plan.consumers.get(tensor, ()), *conditioned):
                    self._skip(step, branch, tensors, actions)
                continue
            steps = [
                step
                for step in conditioned
                if step.index not in branch.started and not branch.is_skipped(step)
            ]
            if not steps:
                continue
            decisions = [
                _decide(steps, value) for value in rows.read(tensor, self._find(branch, tensor))
            ]
            if len(set(decisions)) > 1:
                self._divide(branch, decisions, tensors, actions)
                return False
            for step, runs in zip(steps, decisions[0], strict=True):
                if not runs:
                    self._skip(step, branch, tensors, actions)
        self._release_unread(branch, tensors, actions)
        return True

    def _skip(
        self, step: Step, branch: _Branch[T], tensors: list[str], actions: NextActions[T]
    ) -> None:
        if branch.is_skipped(step):
            return
        branch.skipped.add(step.index)
        actions.skipped.append(step)
        for _, tensor in step.input_map:
            place = branch.find_branch(tensor)
            # Tensors that are being set are released after all conditions.
            if place is not None and tensor not in tensors:
                _release(place.tensors[tensor], actions)
        for _, tensor in step.output_map:
            if all(branch.is_skipped(other) for other in self._plan.producers[tensor]):
                tensors.append(tensor)
                if tensor in self._plan.defaults and self._rows is not None:
                    branch.tensors[tensor] = self._rows.default(tensor, branch.rows)
                else:
                    branch.missing.add(tensor)

    def _release_unread(
        self, branch: _Branch[T], tensors: list[str], actions: NextActions[T]
    ) -> None:
        """Release the tensors of this branch for steps that do not read them."""
        for tensor in tensors:
            if tensor in branch.tensors:
                value = branch.tensors[tensor]
                if tensor in self._plan.conditioned:
                    _release(value, actions)
                for step in self._plan.consumers.get(tensor, ()):
                    if branch.is_skipped(step):
                        _release(value, actions)

    def _divide(
        self,
        branch: _Branch[T],
        decisions: Sequence[tuple[bool, ...]],
        tensors: list[str],
        actions: NextActions[T],
    ) -> None:
        """Divide a branch by what conditions say of its rows; the parts do what is left to do."""
        branch.divided = True
        rows: dict[tuple[bool, ...], list[int]] = {}
        for row, decision in zip(branch.rows or range(len(decisions)), decisions, strict=True):
            rows.setdefault(decision, []).append(row)
        for part_rows in rows.values():
            part = _Branch(branch.source, branch, tuple(part_rows))
            part.started = set(branch.started)
            branch.children.append(part)
        for part in list(branch.children):
            self._proceed(part, list(tensors), actions)

    def _find(self, branch: _Branch[T], tensor: str) -> T | None:
        """Return the tensor from the nearest branch that has it, with the rows of this branch."""
        place = branch.find_branch(tensor)
        assert place is not None, "a tensor of a step that has not all of them"
        value = place.tensors[tensor]
        if value is None or branch.rows is None or place is branch or self._rows is None:
            return value
        rows: Sequence[int] = branch.rows
        if place.rows is not None:
            rows = [place.rows.index(row) for row in rows]
        value = branch.tensors[tensor] = self._rows.select(value, rows)
        return value

    # ---- calls and responses

    def _start_call(self, step: Step, branch: _Branch[T]) -> StepCall[T]:
        branch.started.add(step.index)
        branch.open_calls += 1
        self._open_calls += 1
        tensors = {}
        for name, tensor in step.input_map:
            value = self._find(branch, tensor)
            if value is not None:
                tensors[name] = value
        call = StepCall(step, tensors, branch)
        for source in call.ancestors():
            source.open_below += 1
        return call

    def _respond_if_complete(self, branch: _Branch[T], actions: NextActions[T]) -> None:
        if any(branch.find_branch(tensor) is None for tensor in self._plan.outputs):
            return
        branch.responded = True
        if branch.rows is None:
            response = [self._find(branch, tensor) for tensor in self._plan.outputs]
        elif all(part.responded or part.divided for part in self._root.subtree()):
            response = [self._join(tensor) for tensor in self._plan.outputs]
        else:
            return
        self.responses += 1
        actions.responses.append(response)

    def _join(self, tensor: str) -> T | None:
        """Return an output of a divided request."""
        if tensor in self._root.tensors or self._rows is None:
            return self._root.tensors[tensor]
        parts: list[tuple[Sequence[int], T | None]] = []
        _add_parts(self._root, tensor, parts)
        return self._rows.join(tensor, parts)


def _decide(steps: Iterable[Step], value: float) -> tuple[bool, ...]:
    """Return for each step whether its condition holds."""
    return tuple(step.condition is not None and step.condition.holds(value) for step in steps)


def _release(value: T | None, actions: NextActions[T]) -> None:
    if value is not None:
        actions.released.append(value)


def _add_parts(
    branch: _Branch[T], tensor: str, parts: list[tuple[Sequence[int], T | None]]
) -> None:
    """Add the rows of the largest parts that have a tensor, and the tensor."""
    for part in branch.children:
        if part.rows is not None and tensor in part.tensors:
            parts.append((part.rows, part.tensors[tensor]))
        else:
            _add_parts(part, tensor, parts)


def _may_run(step: Step, branch: _Branch[T]) -> bool:
    """Return whether a step has all it needs, at least one of them in this branch.

    What a part does not have itself, its parent has left to it.
    """
    if branch.is_skipped(step):
        return False
    here = branch.rows is not None
    for tensor in step.needs():
        place = branch.find_branch(tensor)
        if place is None:
            return False
        here = here or place is branch
    return here


def _prune(branch: _Branch[T]) -> None:
    """Free a branch that is done, since a long stream opens many branches."""
    parent = branch.parent
    if (
        parent is not None
        and branch.rows is None
        and branch.responded
        and not branch.open_calls
        and not branch.children
    ):
        parent.children.remove(branch)
